"""One kernel that this process holds: restarted in place, ended, let go; and the truth about how it died."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from datetime import UTC, datetime
from typing import Any

import anyio

from jupyter_gpu.backends.base import PROTOCOL, Address, Backend, UnixAddress
from jupyter_gpu.errors import (
    BackendError,
    ConflictError,
    JupyterGpuError,
    NotFoundError,
    UnsupportedError,
    WorkloadFailedError,
)
from jupyter_gpu.schema import Phase, Reason, Selector, Stream, Workload
from jupyter_gpu.services.kernel_requests import CHANNELS
from jupyter_gpu.services.parent_channel import ParentChannel, State

_log = logging.getLogger(__name__)

Progress = Callable[[Workload], None]
"""Is told how the Workload stands, at each change."""

_HELLO_EVERY_S = 10.0
_PARENT_ANSWERS_S = 60.0
_END_ANSWERS_S = 10.0
_SETTLES_S = 0.5  # a local place frees the device within this; a cluster takes its time, and nobody waits for it
_DEADLY_ANSWERS_S = 5.0
_TAIL_LINES = 12
_TEND_EVERY_S = 2.0


class Kernel:
    """One kernel that this process holds."""

    def __init__(self, backend: Backend, id: str, keys: Mapping[str, str], progress: Progress) -> None:
        self.id = id
        self.connection_info: dict[str, Any] = {}
        """As in a Jupyter connection file."""
        self.state: State = {}
        """What its parent said last."""
        self.workload: Workload | None = None
        self._backend, self._keys, self._progress = backend, keys, progress
        self._changed = anyio.Event()
        self._up = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self._scope = anyio.CancelScope()
        self._let_go = self._is_forgotten = False
        self._ports = AsyncExitStack()
        self._channel: ParentChannel | None = None

    # ---- what a caller asks

    async def up(self) -> None:
        """Take hold of it, and return when the kernel listens; see `Kernels.launch` for errors."""
        self._owner = asyncio.create_task(self._live(), name=f"kernel {self.id}")
        await asyncio.shield(self._up)
        await self._listens(start=1)

    @property
    def exit_code(self) -> int | None:
        """None while the kernel lives, else its exit code; negative: minus the number of the signal that ended it."""
        if self._let_go:
            return -signal.SIGKILL  # whatever becomes of it, it is not ours any more
        if self._final is not None:
            code = self._final.facts.get("exit_code")
            return code if isinstance(code, int) else -signal.SIGKILL
        kernel = self.state.get("kernel", {})
        return kernel["exit_code"] if kernel.get("state") == "exited" else None

    @property
    def held(self) -> bool:
        """Whether this process has it."""
        return self._owner is not None

    @property
    def ended(self) -> bool:
        """Whether its Workload is final or forgotten, so that only a new launch brings it back."""
        return self._final is not None

    @property
    def cause(self) -> str:
        """What it died of, in words; empty while it lives."""
        if self._final is not None:
            return self._final.message
        code = self.exit_code
        if code is None:
            return ""
        if told := self.state.get("cause"):  # by its parent, which saw it die
            return str(told["message"])
        return f"it ended with exit code {code}" if code >= 0 else f"it was ended by signal {-code}"

    async def died(self) -> int:
        """Wait for the kernel's death and return its exit code."""
        while (code := self.exit_code) is None:
            await self._changed.wait()
        return code

    async def spawn(self, *, command: list[str], variables: Mapping[str, str]) -> None:
        """Start the kernel again in place: same parent, same device, same ports; return when it listens.

        Raises:
            WorkloadFailedError: it ended instead.
            NotFoundError: it had ended, or was let go.
            BackendTimeoutError: its parent does not answer.
        """
        self._channel_of_living()
        await self._open_ports()
        answer = await self._ask("spawn", command=command, variables=dict(variables))
        kernel = answer["kernel"]  # one that still lives is ended first, and the next start is the one to wait for
        await self._listens(start=kernel["start"] + (kernel["state"] != "starting"))

    async def signal(self, number: int) -> None:
        """Send a signal to the kernel and what it started; where its parent can't be asked, a deadly one ends the Workload."""
        if self._let_go or self.ended:
            return
        is_deadly = number in (signal.SIGKILL, signal.SIGTERM)
        try:
            await self._ask("signal", signum=number, timeout_s=_DEADLY_ANSWERS_S if is_deadly else _PARENT_ANSWERS_S)
        except BackendError:
            if is_deadly:
                await self._backend.cancel(self.id, grace_s=0)

    async def end(self) -> None:
        """End the kernel and its Workload, so that the device is free, and let go of it."""
        if not self.ended and not self._let_go:
            try:
                await self._ask("end", timeout_s=_END_ANSWERS_S)
            except BackendError:
                with suppress(JupyterGpuError):
                    await self._backend.cancel(self.id, grace_s=0)
            with anyio.move_on_after(_SETTLES_S):
                while not self.ended:
                    await self._changed.wait()
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of it; it runs on."""
        if self._owner is not None:
            self._scope.cancel()  # not the task: what runs in a thread must come to its end, or a hold is left behind
            await asyncio.wait([self._owner])
            self._owner, self._let_go = None, True
            self._wake()

    # ---- what goes on meanwhile, all of it in one task

    async def _live(self) -> None:
        try:
            with self._scope:
                await self._hold_and_follow()
            self._fail(ConflictError(f"kernel {self.id} was let go"))
        except Exception as error:  # noqa: BLE001 - whatever it was, whoever waits must hear of it
            if self._up.done():
                _log.error("kernel %s can't be followed any more: %r", self.id, error)
                self._let_go = True
            self._fail(error)
            self._wake()

    async def _hold_and_follow(self) -> None:
        async with AsyncExitStack() as stack, anyio.create_task_group() as group:
            await stack.enter_async_context(self._backend.hold(self.id))
            group.start_soon(self._follow)
            tending = anyio.CancelScope()
            group.start_soon(self._tend, tending)
            await self._until_ready()
            tending.cancel()
            stack.push_async_callback(self._close_ports)
            await self._open_ports()
            group.start_soon(self._greet)
            group.start_soon(self._pass_on_that_it_is_cancelled)

    async def _follow(self) -> None:
        async with aclosing(self._backend.watch(Selector(ids=frozenset({self.id})))) as watch:  # type: ignore[type-var]
            async for changes in watch:
                for workload in changes.workloads:
                    self.workload = workload
                    self._progress(workload)
                    self._wake()
                if self.workload and (self.id in changes.removed or (changes.complete and not changes.workloads)):
                    self._is_forgotten = True
                    self._wake()
                if self._final is not None and not self._up.done():
                    self._fail(WorkloadFailedError(self.id, await self._with_last_words(self._final)))

    async def _tend(self, scope: anyio.CancelScope) -> None:
        # whoever waits also keeps: where no Keeper runs, a start that can't heal must end all the same
        with scope:
            while True:
                with suppress(BackendError):
                    await self._backend.tend(datetime.now(UTC))
                await anyio.sleep(_TEND_EVERY_S)

    async def _until_ready(self) -> None:
        while self.workload is None or not self.workload.status.ready:
            await self._changed.wait()

    async def _open_ports(self) -> None:
        await self._close_ports()
        addresses: dict[str, Address] = {}
        for name in (*CHANNELS, "parent"):
            addresses[name] = await self._ports.enter_async_context(self._backend.open_port(self.id, port=name))
        self.connection_info = {**_connection_info(addresses), **self._keys, "key": self._keys["key"].encode()}
        if self._channel is None:
            self._channel = ParentChannel(addresses["parent"], self._keys, self._take)

    async def _close_ports(self) -> None:
        await self._ports.aclose()

    async def _greet(self) -> None:
        assert self._channel is not None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._channel.listen)
                hello = await self._channel.request("hello", timeout_s=_PARENT_ANSWERS_S)
                if hello["protocol"] not in (PROTOCOL, PROTOCOL - 1):
                    raise UnsupportedError(
                        f"the parent of kernel {self.id} speaks protocol {hello['protocol']}, and this version {PROTOCOL}"
                    )
                if not self._up.done():
                    self._up.set_result(None)
                while True:
                    await anyio.sleep(_HELLO_EVERY_S)
                    with suppress(BackendError):  # a node that is away shows in the watch
                        await self._channel.request("hello", timeout_s=_PARENT_ANSWERS_S)
        finally:
            self._channel.close()

    async def _pass_on_that_it_is_cancelled(self) -> None:
        """End a kernel in a pod whose end is somebody's wish: its parent does not know, and would leave it time to be saved."""
        while not (self._is_cancelled() and (self.state.get("stopping") or {}).get("code") == "end.terminated"):
            await self._changed.wait()
        with suppress(JupyterGpuError):
            await self._ask("signal", signum=int(signal.SIGTERM))

    def _is_cancelled(self) -> bool:
        reason = self.workload.status.reason if self.workload else None
        return reason is not None and reason.code == "end.stopping" and reason.facts.get("because") == "end.cancelled"

    async def _listens(self, *, start: int) -> None:
        while True:
            kernel = self.state.get("kernel", {"start": 0})
            if self._final is not None:
                raise WorkloadFailedError(self.id, await self._with_last_words(self._final))
            if self._let_go:
                raise ConflictError(f"kernel {self.id} was let go")
            if kernel["start"] >= start and kernel["state"] == "running":
                return
            if kernel["start"] >= start and kernel["state"] == "exited":
                code = kernel["exit_code"]
                words = f"the kernel ended with exit code {code} before it listened" if code >= 0 else _killed_early(code)
                why = self.state.get("stopping") or self._want_of_memory() or {"code": "start.kernel", "message": words}
                facts: dict[str, Any] = {**why.get("facts", {}), "exit_code": code}
                reason = Reason(code=why["code"], message=why["message"], facts=facts)
                raise WorkloadFailedError(self.id, await self._with_last_words(reason))
            await self._changed.wait()

    def _want_of_memory(self) -> State | None:
        cause: State = self.state.get("cause") or {}
        return cause if cause.get("code") == "end.out_of_memory" else None

    async def _with_last_words(self, reason: Reason) -> Reason:
        lines: deque[str] = deque(maxlen=_TAIL_LINES)
        with suppress(NotFoundError, BackendError):
            async with aclosing(self._backend.logs(self.id)) as log:  # type: ignore[type-var]
                async for line in log:
                    if line.stream is not Stream.REPORT and line.text.strip():
                        lines.append(line.text)
        if not lines:
            return reason
        return reason.model_copy(update={"message": reason.message + "; it said last:\n  " + "\n  ".join(lines)})

    async def _ask(self, op: str, *, timeout_s: float = _PARENT_ANSWERS_S, **fields: Any) -> State:
        return await self._channel_of_living().request(op, timeout_s=timeout_s, **fields)

    def _channel_of_living(self) -> ParentChannel:
        if self._channel is None or self.ended or self._let_go:
            raise NotFoundError(f"kernel {self.id} has ended, or was let go")
        return self._channel

    @property
    def _final(self) -> Reason | None:
        if self.workload is None:
            return None
        if not self.workload.status.phase.is_final:
            words = f"{self._backend.name} knows nothing of it any more: what it knew was removed"
            return Reason(code="end.lost", message=words) if self._is_forgotten else None
        ok = self.workload.status.phase is Phase.SUCCEEDED
        default = Reason(code="end.completed", message="it has ended", facts={"exit_code": 0} if ok else {})
        return self.workload.status.reason or default

    def _take(self, state: State) -> None:
        self.state = state
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _fail(self, error: Exception) -> None:
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if not self._up.done():
            self._up.set_exception(error)
            self._up.exception()  # nobody may be left to take it


def _killed_early(code: int) -> str:
    return f"the kernel was ended by signal {-code} before it listened"


def _connection_info(addresses: Mapping[str, Address]) -> dict[str, Any]:
    first = addresses["shell"]
    info: dict[str, Any] = {"transport": "tcp", "signature_scheme": "hmac-sha256"}
    for name in CHANNELS:
        address = addresses[name]
        info[f"{name}_port"] = int(address.path.name.rpartition("-")[2]) if isinstance(address, UnixAddress) else address.port
    if isinstance(first, UnixAddress):
        return {**info, "transport": "ipc", "ip": str(first.path).rpartition("-")[0]}
    return {**info, "ip": first.host}
