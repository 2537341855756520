"""The Keeper: what acts when nobody looks. It takes the lead, does one step after the other, and leaves when nothing waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

import anyio

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import BackendError, JupyterGpuError

_LONGEST_SLEEP_S = 30.0
_TROUBLE_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Pauses after steps that failed one after the other; after the last one the Keeper gives up."""


@runtime_checkable
class Leads(Protocol):
    """What a backend has where several processes may want to be the Keeper; one without lets each of them be it."""

    def keeper_leadership(self) -> AbstractAsyncContextManager[bool]:
        """Be the Keeper for as long as the context is open; gives whether one is."""

    async def retire(self) -> bool:
        """Stop being the Keeper if nothing is QUEUED or may be again by itself, and return whether that was so.

        No submit falls between the two.
        """

    async def changed(self) -> None:
        """Return when a Workload has changed."""


async def keep(backend: Backend, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> bool:
    """Be the Keeper of a place until nothing waits there.

    A step is done at the time that the last one named, and whenever a Workload changes.

    Args:
        backend: the place.
        now: the clock that steps are told.

    Returns:
        Whether this was the Keeper; False if another process is.

    Raises:
        BackendError: the place has been in trouble for a minute; the next one that must wait there brings a new Keeper.
        JupyterGpuError: the place can't be used at all.
    """
    async with _leadership(backend) as leads:
        if not leads:
            return False
        changes, trouble = _Changes(), None
        async with anyio.create_task_group() as group:
            group.start_soon(changes.follow, backend)
            try:
                await _step_until_nothing_waits(backend, changes, now)
            except JupyterGpuError as error:
                trouble = error  # raised below, where no group wraps it
            group.cancel_scope.cancel()
        if trouble is not None:
            raise trouble
    return True


async def _step_until_nothing_waits(backend: Backend, changes: _Changes, now: Callable[[], datetime]) -> None:
    failed = 0
    while True:
        changes.forget()  # what changes during the step is seen by the next one
        try:
            due = await backend.tend(now())
            if await (backend.retire() if isinstance(backend, Leads) else _is_none(due)):
                return
            pause_s, failed = min(_LONGEST_SLEEP_S, (due - now()).total_seconds() if due else _LONGEST_SLEEP_S), 0
        except BackendError:
            if failed == len(_TROUBLE_S):
                raise
            pause_s, failed = _TROUBLE_S[failed], failed + 1
        await changes.wait(pause_s)


async def _is_none(due: datetime | None) -> bool:
    return due is None


@asynccontextmanager
async def _leadership(backend: Backend) -> AsyncIterator[bool]:
    if not isinstance(backend, Leads):
        yield True
        return
    async with backend.keeper_leadership() as leads:
        yield leads


class _Changes:
    """Whether a Workload changed."""

    def __init__(self) -> None:
        self._changed = anyio.Event()

    async def follow(self, backend: Backend) -> None:
        while True:
            with suppress(JupyterGpuError):  # the step has the same trouble, and knows what to do about it
                while isinstance(backend, Leads):
                    await backend.changed()
                    self._changed.set()
                async with aclosing(backend.watch()) as watch:  # type: ignore[type-var]
                    async for _ in watch:
                        self._changed.set()
            await anyio.sleep(_TROUBLE_S[-1])

    def forget(self) -> None:
        self._changed = anyio.Event()

    async def wait(self, longest_s: float) -> None:
        with anyio.move_on_after(max(longest_s, 0.0)):
            await self._changed.wait()
