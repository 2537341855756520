"""How a pod's ports are reached: straight at its address, or through the API server to a Unix socket here.

Source: ``v4.channel.k8s.io``, the kubelet's port-forward (k8s.io/kubelet, pkg/cri/streaming/portforward/websocket.go): a message
starts with a channel byte, 0 for data and 1 for errors, and the first message of each channel is the port.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from jupyter_gpu.backends.base import Address, TcpAddress, UnixAddress
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.backends.kubernetes.tasks import Tasks
from jupyter_gpu.errors import BackendError, JupyterGpuError
from jupyter_gpu.schema import Port, Reach

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_log = logging.getLogger(__name__)

PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_CHUNK = 64 * 1024
_PROBE_S = 0.5
_PING_S = 30.0  # load balancers cut a connection on which nothing moves
_LISTENS_WITHIN_S = 30.0  # a kernel's connection may be opened before it listens
_RETRY_S = (0.05, 0.5)


@dataclass(frozen=True)
class Target:
    """A port of a running pod."""

    pod: str
    ip: str
    port: Port
    is_kernel: bool


class Ports:
    """The ports that are open here."""

    def __init__(self, client: Client, reach: Reach, tasks: Tasks) -> None:
        self._client, self._reach, self._tasks = client, reach, tasks
        self._pods_answer: bool | None = None  # whether pod addresses can be reached from here, once that is known
        self._bridges: dict[tuple[str, int], _Bridge] = {}
        self._folder: Path | None = None
        self._lock = anyio.Lock()

    @asynccontextmanager
    async def open(self, target: Target) -> AsyncIterator[Address]:
        """Make a port reachable for as long as the context is open."""
        if not target.port.loopback and await self._is_direct(target):
            yield TcpAddress(target.ip, target.port.number)
            return
        key = (target.pod, target.port.number)
        async with self._lock:
            if key not in self._bridges:
                self._bridges[key] = await self._bridge(target)
            bridge = self._bridges[key]
            bridge.users += 1
        try:
            yield UnixAddress(bridge.path)
        finally:
            bridge.users -= 1
            if not bridge.users:
                del self._bridges[key]
                bridge.close()

    def close(self) -> None:
        """Close all bridges."""
        for bridge in self._bridges.values():
            bridge.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _is_direct(self, target: Target) -> bool:
        if self._reach is not Reach.AUTO:
            return self._reach is Reach.DIRECT
        if self._client.in_cluster:
            return True
        if self._pods_answer is None:
            answer = await _probe(target.ip, target.port.number)
            if answer is None:
                return True  # refused: somebody is there, but that may be a firewall, so it is not remembered
            self._pods_answer = answer
        return self._pods_answer

    async def _bridge(self, target: Target) -> _Bridge:
        try:
            return await _Bridge.open(self._client, target, self._socket_of(target), self._tasks)
        except OSError as error:
            raise BackendError(f"there can be no Unix socket for port {target.port.name!r}: {error}") from error

    def _socket_of(self, target: Target) -> Path:
        """Return the path for a bridge: ``<short private folder>/<number for the pod>/k-<port>``."""
        if self._folder is None:
            parent = os.environ.get("XDG_RUNTIME_DIR", "")
            parent = parent if parent and len(parent) < 40 and os.access(parent, os.W_OK) else tempfile.gettempdir()
            self._folder = Path(tempfile.mkdtemp(prefix="jgk-", dir=parent))  # 0700
        folder = self._folder / target.pod[-32:]
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"k-{target.port.number}"


async def _probe(host: str, port: int) -> bool | None:
    """Return whether an address answers; None if it refuses."""
    try:
        with anyio.fail_after(_PROBE_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return None
    except (TimeoutError, OSError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


class _Bridge:
    """A Unix socket here that stands for a port in a pod: each connection to it becomes a WebSocket to the API server."""

    def __init__(self, client: Client, target: Target, path: Path, tasks: Tasks) -> None:
        self._client, self._target, self.path, self._owner = client, target, path, tasks
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.users = 0

    @classmethod
    async def open(cls, client: Client, target: Target, path: Path, tasks: Tasks) -> _Bridge:
        bridge = cls(client, target, path, tasks)
        bridge._server = await asyncio.start_unix_server(bridge._accept, path=str(path))
        return bridge

    def close(self) -> None:
        if self._server:
            self._server.close()
        for connection in tuple(self._connections):
            connection.cancel()
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            self.path.parent.rmdir()  # it was the last of its pod

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._owner.start(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._carry(reader, writer)
        except JupyterGpuError as error:
            _log.warning("port %d of the pod %s: %s", self._target.port.number, self._target.pod, error)
        except OSError as error:
            _log.debug("port %d of the pod %s: %s", self._target.port.number, self._target.pod, error)
        finally:
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways until one side ends; while a kernel does not listen yet, try again."""
        delay, most = _RETRY_S
        deadline = time.monotonic() + (_LISTENS_WITHIN_S if self._target.is_kernel else 0)
        path = self._client.path(Objects.PODS, self._target.pod, "portforward")
        exchange = _Exchange(reader, writer)
        while True:
            query = {"ports": str(self._target.port.number)}
            async with self._client.websocket(path, query, PROTOCOL, what="create pods/portforward") as socket:
                refusal = await exchange.run(socket)
            if refusal is None:
                return
            if time.monotonic() > deadline or reader.at_eof():
                _log.info("port %d of the pod %s: %s", self._target.port.number, self._target.pod, refusal)
                return
            await anyio.sleep(delay)
            delay = min(delay * 2, most)


class _Exchange:
    """The bytes between a connection here and a port in a pod; what was said to a port that refused is said again to the next."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._unheard: bytes | None = b""  # said, but nothing has come back yet; None once there was an answer, or too much of it

    async def run(self, socket: Any) -> str | None:
        """Carry bytes both ways until one side ends.

        Returns:
            None, or the far side's words if it refused and may be asked again.
        """
        helpers = [asyncio.create_task(self._send(socket)), asyncio.create_task(_ping(socket))]
        try:
            return await self._receive(socket)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _receive(self, socket: Any) -> str | None:
        opened = set()
        async for message in socket:
            if not isinstance(message.data, bytes) or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in opened:
                opened.add(channel)  # this one only names the port
            elif channel == _ERROR:
                return data.decode(errors="replace") if self._unheard is not None else None
            elif channel == _DATA:
                self._unheard = None
                self._writer.write(data)
                await self._writer.drain()
        return "it was closed without an answer" if self._unheard is not None else None  # the word of a refusal may get lost

    async def _send(self, socket: Any) -> None:
        if self._unheard:
            await socket.send_bytes(bytes([_DATA]) + self._unheard)
        while data := await self._reader.read(_CHUNK):
            if self._unheard is not None:
                self._unheard = self._unheard + data if len(self._unheard) < _CHUNK else None
            await socket.send_bytes(bytes([_DATA]) + data)
        await socket.close()  # the protocol has no end of one direction only


async def _ping(socket: Any) -> None:
    while True:
        await asyncio.sleep(_PING_S)
        await socket.ping()
