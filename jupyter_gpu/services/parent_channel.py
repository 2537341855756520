"""The client's end of the channel to a kernel's parent (`jupyter_gpu.replica` has the words)."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import anyio
import zmq
import zmq.asyncio

from jupyter_gpu.backends.base import Address, UnixAddress
from jupyter_gpu.errors import BackendTimeoutError, ConflictError

State = Mapping[str, Any]
"""What the parent says of itself and its kernel."""


class ParentChannel:
    """Speak to a kernel's parent. Requests may be made as soon as `listen` runs, and before the parent is up."""

    def __init__(self, address: Address, keys: Mapping[str, str], on_state: Callable[[State], None]) -> None:
        self._key = keys["key"].encode()
        self._on_state = on_state
        self._numbers = count(1)
        self._answers: dict[int, tuple[anyio.Event, list[State]]] = {}
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = 20, 50  # ms; backing off would delay the start
        self._socket.heartbeat_ivl, self._socket.heartbeat_timeout = 5000, 20000
        if "curve_publickey" in keys:  # as Jupyter does it: one pair of keys for both ends
            self._socket.curve_serverkey = keys["curve_publickey"].encode()
            self._socket.curve_publickey = keys["curve_publickey"].encode()
            self._socket.curve_secretkey = keys["curve_secretkey"].encode()
        where = f"ipc://{address.path}" if isinstance(address, UnixAddress) else f"tcp://{address.host}:{address.port}"
        self._socket.connect(where)

    async def listen(self) -> None:
        """Take what the parent sends; runs until cancelled."""
        while True:
            frames = await self._socket.recv_multipart()
            if len(frames) != 2 or not hmac.compare_digest(self._sign(frames[0]), frames[1]):
                continue
            message = json.loads(frames[0])
            if "kernel" in message:
                self._on_state(message)
            waiter = self._answers.pop(message.get("n"), None)
            if waiter is not None:
                waiter[1].append(message)
                waiter[0].set()

    async def request(self, op: str, *, timeout_s: float, **fields: Any) -> State:
        """Ask the parent for something and return its state after it.

        Raises:
            BackendTimeoutError: no answer within ``timeout_s``.
            ConflictError: the parent can't do it; its words.
        """
        number = next(self._numbers)
        answered, answers = self._answers[number] = (anyio.Event(), [])
        data = json.dumps({"op": op, "n": number, **fields}).encode()
        try:
            with anyio.fail_after(timeout_s):
                await self._socket.send_multipart([data, self._sign(data)])
                await answered.wait()
        except TimeoutError as error:
            raise BackendTimeoutError(f"the kernel's parent did not answer {op!r} within {timeout_s:g} s") from error
        finally:
            self._answers.pop(number, None)
        if not answers[0]["ok"]:
            raise ConflictError(str(answers[0]["error"]))
        return answers[0]

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def _sign(self, data: bytes) -> bytes:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest().encode()
