"""Background work with an owner that awaits its end, and several calls at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio

_log = logging.getLogger(__name__)


class Tasks:
    """Tasks that run until they end or their owner closes; each runs outside the scopes of whoever started it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.error("background work failed", exc_info=error)

    async def aclose(self) -> None:
        """Cancel what runs, and wait for its end."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*running, return_exceptions=True)


async def together(*calls: Callable[[], Awaitable[Any]]) -> tuple[Any, ...]:
    """Make several calls at once and return their results in order; the first error ends the others."""
    results: list[Any] = [None] * len(calls)

    async def make(index: int, call: Callable[[], Awaitable[Any]]) -> None:
        results[index] = await call()

    try:
        async with anyio.create_task_group() as group:
            for index, call in enumerate(calls):
                group.start_soon(make, index, call)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return tuple(results)
