"""Look at the store and the runners for changes: one look serves all watches of this process."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import anyio
from anyio.to_thread import run_sync
from pydantic import ValidationError

from jupyter_gpu.backends.local import locks, rows
from jupyter_gpu.backends.local.clock import boot_clock
from jupyter_gpu.backends.local.rows import Mark, Row
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

    mark: Mark
    row: Row
    folder: AttemptFolder

    @cached_property
    def workload(self) -> Workload | None:
        """It, as it is shown; None if its story can't be read, which must not hide all others. A Keeper never asks."""
        try:
            return self.row.workload(self.mark.position)
        except ValidationError as error:
            _log.warning("the workload %s can't be read, and is left out: %s", self.row.id, error)
            return None

    def moved(self, mark: Mark) -> Known:
        """Return the same at another place in its queue."""
        moved = replace(self, mark=mark)
        if workload := self.__dict__.get("workload"):
            status = workload.status.model_copy(update={"position": mark.position})
            moved.__dict__["workload"] = workload.model_copy(update={"status": status})
        return moved

    def needs_a_step(self, boot_s: float) -> bool:
        """Return whether something happened to its runner, or a limit of it passed, that the store does not know yet.

        It is one that is STARTING or RUNNING.
        """
        row = self.row
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
        tend: does one Keeper step, and says first whether it could be done.
        poll_s: seconds from one look to the next.
    """

    def __init__(
        self, state: StateFolder, store: Store, tend: Callable[[], Awaitable[tuple[bool, object]]], poll_s: float
    ) -> None:
        self._state, self.store, self._tend, self._poll_s = state, store, tend, poll_s
        self.known: dict[str, Known] = {}
        # of these, so that a look at thousands that have ended costs the loop nothing
        self._active: list[Known] = []
        self._phases: frozenset[str] = frozenset()
        self._data_version = -1
        self._stepped: dict[str, Known] | None = None
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

    async def changed(self) -> None:
        """Return when anything has changed since the last look.

        Raises:
            BackendError: the store can't be read.
        """
        last = self.known
        while self.known is last and not self._closed:
            await self.pause()

    def has_ended(self, id: str, attempt: int) -> bool:
        """Return whether an attempt is over, or forgotten."""
        known = self.known.get(id)
        return self._closed or known is None or known.row.attempt != attempt or known.row.is_final

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
            if self.store.is_removed:
                self._closed = True  # who watches goes on with the store that is there now
                return
            await self._refresh()
            if not self.store.is_newer and await self._step_if_due():
                await self._refresh()

    async def watch(self, selector: Selector) -> AsyncGenerator[Changes, None]:
        """Show the Workloads, as `Backend.watch` says."""
        await self.look()
        last, complete = self.known, False
        now = await run_sync(_chosen, last, selector)
        shown = {id: last[id].mark for id in now}
        yield Changes(complete=True, workloads=tuple(now.values()))
        while not self._closed:
            if self.known is last and not await self.pause_patiently():  # else the reader was slow, and there is news already
                complete = True  # once the store can be read again
                continue
            if self.known is last and not complete:
                continue
            last = self.known
            now = await run_sync(_chosen, last, selector)
            news = tuple(workload for id, workload in now.items() if complete or shown.get(id) != last[id].mark)
            removed = () if complete else tuple(id for id in shown if id not in now)
            shown = {id: last[id].mark for id in now}
            if news or removed or complete:
                yield Changes(complete=complete, workloads=news, removed=removed)
            complete = False

    def _interval(self) -> float:
        return min(self._poll_s, _START_POLL_S) if Phase.STARTING in self._phases else self._poll_s

    async def _refresh(self) -> None:
        version = self.store.data_version()
        if version != self._data_version:
            self.known, self._active, self._phases = await run_sync(self._read)
            self._data_version = version

    async def _step_if_due(self) -> bool:
        now = boot_clock()
        is_in_vain = self.known is self._stepped and now < self._stepped_boot_s + _TROUBLE_S  # and would be so again
        needs_it = not is_in_vain and any(known.needs_a_step(now) for known in self._active)
        if not needs_it and not self._must_stand_in(now):
            return False
        is_done = True
        with suppress(BackendError):  # a full disk: what there is can be shown all the same, and a later look tries again
            is_done = (await self._tend())[0]
        if is_done:
            self._stepped, self._stepped_boot_s = self.known, now
        return True

    def _must_stand_in(self, now: float) -> bool:
        """Return whether something waits and nobody looks after it."""
        return (
            now >= self._stepped_boot_s + _STAND_IN_S and Phase.QUEUED in self._phases and locks.is_free(self._state.keeper_lock)
        )

    def _read(self) -> tuple[dict[str, Known], list[Known], frozenset[str]]:
        """Return what the store holds, what of it is STARTING or RUNNING, and all phases; only what changed is read."""
        marks = rows.marks(self.store)
        kept = {
            id: known if mark == known.mark else known.moved(mark)
            for id, known in self.known.items()
            if (mark := marks.get(id)) and mark[:3] == known.mark[:3]
        }
        found = rows.find_many(self.store, marks.keys() - kept.keys() if kept else None)
        fresh = {row.id: Known(marks[row.id], row, self._state.attempt(row.id, row.attempt)) for row in found if row.id in marks}
        known = dict(sorted({**kept, **fresh}.items(), key=lambda one: one[1].row.sequence))
        active = [one for one in known.values() if one.row.phase in (Phase.STARTING, Phase.RUNNING)]
        return known, active, frozenset(one.row.phase for one in known.values())


def _chosen(known: Mapping[str, Known], selector: Selector) -> dict[str, Workload]:
    shown = ((id, one.workload) for id, one in known.items())
    return {id: workload for id, workload in shown if workload and selector.matches(workload.spec)}
