"""Kernels: launched, or taken up by their ids where they live already; and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime

import anyio

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import ConflictError, JupyterGpuError, WorkloadFailedError
from jupyter_gpu.schema import Reason, Selector, WorkloadSpec
from jupyter_gpu.services.kernel import Kernel, Progress

_FAREWELL_S = 4.0  # below what a process that exits waits for us


class Kernels:
    """Launch kernels, or take up those that already live: adoption is launch."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kernels: set[Kernel] = set()
        self._launches: dict[anyio.CancelScope, anyio.Event] = {}
        self._farewells: set[asyncio.Task[None]] = set()

    async def launch(self, spec: WorkloadSpec, *, secrets: Mapping[str, str], progress: Progress = lambda _: None) -> Kernel:
        """Submit a KERNEL, wait for its place and its start, and return it when it listens.

        There is no limit to the wait in the queue. One that lives already under this id is taken up instead, with its own keys.
        When the caller gives up (cancellation), so does the Workload.

        Raises:
            WorkloadFailedError: it ended before it listened; the message holds what its program said last.
            ConflictError: another process holds it, or another owner has this id.
            JupyterGpuError: as `Backend.submit`.
        """
        scope = anyio.CancelScope()
        over = self._launches[scope] = anyio.Event()
        try:
            with scope:
                return await self._launch_or_give_up(spec, secrets, progress)
        finally:
            del self._launches[scope]
            over.set()
        raise ConflictError(f"the launch of kernel {spec.id} was given up, for its client ends")

    async def _launch_or_give_up(self, spec: WorkloadSpec, secrets: Mapping[str, str], progress: Progress) -> Kernel:
        kernel = None
        try:
            with suppress(_Running):
                await self._submit(spec, secrets)
            kernel = Kernel(self._backend, spec.id, await self._backend.connection(spec.id), progress)
            self._kernels = {kernel, *(other for other in self._kernels if other.held)}
            await kernel.up()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                if kernel is not None:
                    await kernel.aclose()
                if not isinstance(error, ConflictError):
                    await self._give_up(spec.id, secrets, error)
            raise
        return kernel

    async def end(self, kernel: Kernel) -> None:
        """End a kernel and its Workload, so that the device is free, and let go of it.

        What a place takes longer for, like a pod's end and the removal of its keys, goes on in the background.
        """
        await kernel.end()
        if not kernel.ended:
            farewell = asyncio.create_task(self._see_off(kernel))
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)

    async def aclose(self) -> None:
        """Let go of every kernel; they run on. Those that are ending are seen off, and launches that nobody awaits any more end.

        (An application that is interrupted while it waits abandons its launch without a word.)
        """
        with anyio.move_on_after(_FAREWELL_S):
            for scope, over in list(self._launches.items()):
                scope.cancel()
                await over.wait()
        if self._farewells:
            await asyncio.wait(self._farewells, timeout=_FAREWELL_S)
        for kernel in self._kernels:
            await kernel.aclose()

    async def _see_off(self, kernel: Kernel) -> None:
        with anyio.move_on_after(_FAREWELL_S), suppress(JupyterGpuError):
            async with aclosing(self._backend.watch(Selector(ids=frozenset({kernel.id})))) as watch:  # type: ignore[type-var]
                async for changes in watch:
                    if all(workload.status.phase.is_final for workload in changes.workloads):
                        break
            await self._backend.tend(datetime.now(UTC))

    async def _submit(self, spec: WorkloadSpec, secrets: Mapping[str, str]) -> None:
        try:
            await self._backend.submit(spec, secrets=secrets)
        except ConflictError as error:
            await self._backend.connection(spec.id)  # mine, and it runs with other content: it is taken up as it is
            raise _Running from error

    async def _give_up(self, id: str, secrets: Mapping[str, str], error: BaseException) -> None:
        reason = Reason(code="end.cancelled", message="its launch was given up")
        if isinstance(error, WorkloadFailedError):
            reason = error.reason
        with suppress(JupyterGpuError):
            keys = await self._backend.connection(id)
            if keys.get("key") == secrets.get("key"):  # else somebody else launched it, and it may serve them
                await self._backend.cancel(id, reason=reason, grace_s=0)


class _Running(Exception):
    """It runs already."""
