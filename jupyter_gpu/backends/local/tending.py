"""One Keeper step: settle what ended, admit what fits, start it, and sweep up. All of it is plain blocking code under one lock.

A step may be cut off at any point by the end of its process; the next one, by whichever process, goes on from what the store
and the folders say.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from jupyter_gpu.backends.local import locks, processes, rows, settling, waiting
from jupyter_gpu.backends.local.admitting import admit_waiting
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.names import object_name

BUSY_S = 0.05
"""When to look again where another process tends just now."""

_SWEEP_S = 60.0


class Tending:
    """The Keeper's step of a local place."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._swept: tuple[int, float] | None = None

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold the lock under which all steps are done; gives whether it could be had."""
        descriptor = locks.take(self._site.state.tend_lock)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                locks.release(descriptor)

    def step(self, moment: Moment) -> tuple[bool, datetime | None]:
        """Do one step if the lock can be had.

        Returns:
            Whether it was done, and when to look again: soon if another process is at it, None if nothing waits.
        """
        with self.lock() as mine:
            return (True, self._step(moment)) if mine else (False, moment.now + timedelta(seconds=BUSY_S))

    def _step(self, moment: Moment) -> datetime | None:
        site = self._site
        self._sweep(moment)
        due = [settling.settle(site, row, moment) for row in rows.active(site.store)]
        due.append(admit_waiting(site, moment))
        for row in rows.active(site.store):
            folder = site.state.attempt(row.id, row.attempt)
            if settling.is_unstarted(row, folder) and locks.is_free(folder.lock):
                due.append(settling.start(site, row, moment))
        self.look_after_waiters()
        return min((moment.when(at) for at in due if at is not None), default=None)

    def look_after_waiters(self) -> bool:
        """See that there is a Keeper while something is QUEUED, and return whether something is; needs the lock.

        The Keeper gets its lock from here, so that two steps in a row never start two.
        """
        state, store = self._site.state, self._site.store
        if waiting.is_any(store) != state.waiting.exists():
            with store.transaction():  # no submit meanwhile
                if waiting.is_any(store):
                    state.waiting.touch(mode=0o600)
                else:
                    state.waiting.unlink(missing_ok=True)
        if not waiting.is_any(store):
            return False
        if self._site.keeper and locks.is_free(state.keeper_lock) and (lock := locks.take(state.keeper_lock)) is not None:
            try:
                processes.start_keeper(self._site.keeper, state.keeper_log, lock)
            finally:
                os.close(lock)
        return True

    def _sweep(self, moment: Moment) -> None:
        """Remove stories whose time is over, and folders that no row knows."""
        site, moved = self._site, self._swept is None
        if rows.is_any_expired(site.store, moment.wall_s):
            with site.store.transaction() as connection:  # nobody submits one of these ids meanwhile
                ids, attempts = rows.forget_expired(connection, moment.wall_s)
                for folder in [*map(site.state.workload, ids), *(site.state.attempt(*one).path for one in attempts)]:
                    moved |= self._discard(folder)
        changed = site.state.workloads.stat().st_mtime_ns, time.monotonic()
        if self._swept is None or (changed[0] != self._swept[0] and changed[1] > self._swept[1] + _SWEEP_S):
            with site.store.transaction():
                known = {object_name(id) for id in rows.versions(site.store)}
                for folder in site.state.workloads.iterdir():
                    moved |= folder.name not in known and self._discard(folder)
            self._swept = changed
        if moved:
            shutil.rmtree(site.state.trash, ignore_errors=True)

    def _discard(self, folder: Path) -> bool:
        """Move a folder out of the way at once; removing a long log takes longer."""
        self._site.state.trash.mkdir(mode=0o700, exist_ok=True)
        try:
            folder.rename(self._site.state.trash / f"{folder.name}-{time.time_ns()}")
        except FileNotFoundError:
            return False
        return True
