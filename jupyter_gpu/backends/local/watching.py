"""Look at the store and the runners for changes: one look serves all watches of this process."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import anyio
from anyio.to_thread import run_sync
from pydantic import ValidationError

from jupyter_gpu.backends.local import locks, rows
from jupyter_gpu.backends.local.clock import boot_clock
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.state import AttemptFolder, StateFolder
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.errors import BackendError
from jupyter_gpu.schema import Changes, Phase, Selector, Workload

_log = logging.getLogger(__name__)

_START_POLL_S = 0.01  # while something starts somebody waits for it, and it is soon over
_STAND_IN_S = 1.0
_TROUBLE_S = 0.5


@dataclass(frozen=True)
class Known:
    """A Workload as last seen."""

    row: Row
    workload: Workload
    folder: AttemptFolder

    @property
    def mark(self) -> tuple[int, int]:
        """What changes whenever the row does."""
        return self.row.sequence, self.row.version

    def needs_a_step(self, boot_s: float) -> bool:
        """Return whether something happened to its runner, or a limit of it passed, that the store does not know yet."""
        row = self.row
        if row.phase not in (Phase.STARTING, Phase.RUNNING):
            return False
        due = row.kill_boot_s
        if row.phase == Phase.STARTING:
            if self.folder.state.exists():
                return True
            due = due or (row.admitted_boot_s or boot_s) + row.start_timeout_s
        return (due is not None and boot_s >= due) or locks.is_free(self.folder.lock)


class Watching:
    """What the store held at the last look.

    There is no task behind it: of those who wait in `pause` one does the next look for all, and if it is cancelled another
    takes its place.

    Args:
        state: the place's folder.
        store: a connection for this alone, so that what other connections write is noticed.
        tend: does one Keeper step.
        poll_s: seconds from one look to the next.
    """

    def __init__(self, state: StateFolder, store: Store, tend: Callable[[], Awaitable[object]], poll_s: float) -> None:
        self._state, self.store, self._tend, self._poll_s = state, store, tend, poll_s
        self.known: dict[str, Known] = {}
        self._data_version = -1
        self._stepped_boot_s = 0.0
        self._looking = anyio.Lock()
        self._leading = self._closed = False
        self._turn, self._woken = anyio.Event(), anyio.Event()

    def wake(self) -> None:
        """Make the next look now: this process has changed something."""
        self._woken.set()

    async def pause(self) -> None:
        """Return after the next look, by whomever.

        Raises:
            BackendError: the store can't be read.
        """
        if self._leading:
            await self._turn.wait()
            return
        self._leading = True
        try:
            with anyio.move_on_after(self._interval()):
                await self._woken.wait()
            await self.look()
        finally:
            self._leading = False
            turn, self._turn = self._turn, anyio.Event()
            turn.set()

    async def pause_patiently(self) -> bool:
        """Return after the next look, or after some time if the store can't be read; and whether it could."""
        try:
            await self.pause()
        except BackendError:
            await anyio.sleep(_TROUBLE_S)
            return False
        return True

    def has_ended(self, id: str, sequence: int) -> bool:
        """Return whether an attempt, by its sequence, is final or forgotten."""
        known = self.known.get(id)
        return self._closed or known is None or known.row.sequence != sequence or known.row.is_final

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        self.wake()

    async def look(self) -> None:
        """Bring `known` up to date.

        Raises:
            BackendError: the store can't be read.
        """
        async with self._looking:
            self._woken = anyio.Event()
            if self._closed:
                return
            await self._refresh()
            if not self.store.is_newer and await self._step_if_due():
                await self._refresh()

    async def watch(self, selector: Selector) -> AsyncGenerator[Changes, None]:
        """Show the Workloads, as `Backend.watch` says."""
        await self.look()
        shown = {id: known.mark for id, known in self.known.items() if selector.matches(known.workload.spec)}
        complete, last = False, self.known
        yield Changes(complete=True, workloads=tuple(last[id].workload for id in shown))
        while not self._closed:
            if self.known is last and not await self.pause_patiently():  # else the reader was slow, and there is news already
                complete = True  # once the store can be read again
                continue
            if self.known is last and not complete:
                continue
            last = self.known
            now = {id: known.mark for id, known in last.items() if selector.matches(known.workload.spec)}
            news = tuple(last[id].workload for id, mark in now.items() if complete or shown.get(id) != mark)
            removed = () if complete else tuple(id for id in shown if id not in now)
            shown = now
            if news or removed or complete:
                yield Changes(complete=complete, workloads=news, removed=removed)
            complete = False

    def _interval(self) -> float:
        starting = any(known.row.phase == Phase.STARTING for known in self.known.values())
        return min(self._poll_s, _START_POLL_S) if starting else self._poll_s

    async def _refresh(self) -> None:
        version = self.store.data_version()
        if version != self._data_version:
            self.known = await run_sync(self._read)
            self._data_version = version

    async def _step_if_due(self) -> bool:
        now = boot_clock()
        if not any(known.needs_a_step(now) for known in self.known.values()) and not self._must_stand_in(now):
            return False
        self._stepped_boot_s = now
        with suppress(BackendError):  # a full disk: what there is can be shown all the same, and the next look tries again
            await self._tend()
        return True

    def _must_stand_in(self, now: float) -> bool:
        """Return whether something waits and nobody looks after it."""
        return (
            now >= self._stepped_boot_s + _STAND_IN_S
            and any(known.row.phase == Phase.QUEUED for known in self.known.values())
            and locks.is_free(self._state.keeper_lock)
        )

    def _known(self, row: Row) -> Known | None:
        try:
            return Known(row, row.workload(), self._state.attempt(row.id, row.attempt))
        except ValidationError as error:  # one story that can't be read must not hide all others
            _log.warning("the workload %s can't be read, and is left out: %s", row.id, error)
            return None

    def _read(self) -> dict[str, Known]:
        """Return what the store holds; only what changed is read and parsed."""
        versions = rows.versions(self.store)
        kept = {id: known for id, known in self.known.items() if known.mark == versions.get(id)}
        changed = versions.keys() - kept.keys()
        found = rows.find_many(self.store, changed if kept else None)
        fresh = {row.id: known for row in found if (known := self._known(row))}
        return dict(sorted({**kept, **fresh}.items(), key=lambda one: one[1].row.sequence))
