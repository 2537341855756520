"""One Keeper step: settle what ended, admit what fits, start it, and sweep up. All of it is plain blocking code under one lock.

A step may be cut off at any point by the end of its process; the next one, by whichever process, goes on from what the store
and the folders say.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from jupyter_gpu.backends.local import (
    accounting,
    keeping,
    locks,
    processes,
    rows,
    settling,
    starting,
    stories,
    succession,
    waiting,
)
from jupyter_gpu.backends.local.admitting import admit_waiting
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.backends.local.waiting import Line
from jupyter_gpu.names import object_name

BUSY_S = 0.05
"""When to look again where another process tends just now."""

_SWEEP_S = 60.0
_TROUBLE_S = 1.0
_STRAYS = "strays"

_Act = Callable[[Site, Row, Moment], float | None]
_log = logging.getLogger(__name__)


class Tending:
    """The Keeper's step of a local place."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._line = Line(site.store)
        self._troubles: dict[str, str] = {}
        self._are_strays_gone = False
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
        if not self._are_strays_gone and not self._end_strays():
            return moment.now + timedelta(seconds=_TROUBLE_S)
        self._sweep(moment)
        due = [self._one(settling.settle, row, moment) for row in rows.active(site.store)]
        due.append(admit_waiting(site, self._line, moment))
        for row in rows.active(site.store):
            folder = site.state.attempt(row.id, row.attempt)
            if settling.is_unstarted(row, folder) and locks.is_free(folder.lock):
                due.append(self._one(settling.start, row, moment))
        self.look_after_waiters()
        return min((moment.when(at) for at in due if at is not None), default=None)

    def _end_strays(self) -> bool:
        """End what a lost store knew of, for it holds devices that the new one takes for free; return whether it is gone.

        Each store is asked once whether that was done, for whoever made it may have died before.
        """
        state, store = self._site.state, self._site.store
        if not store.rows("SELECT 1 FROM settings WHERE name = ?", (_STRAYS,)):
            if not processes.end_strays(state, {(row.id, row.attempt) for row in rows.active(store)}):
                return False
            with store.transaction() as connection:
                connection.execute("INSERT OR IGNORE INTO settings (name, value) VALUES (?, 'ended')", (_STRAYS,))
        self._are_strays_gone = True
        return True

    def _one(self, act: _Act, row: Row, moment: Moment) -> float | None:
        """Do something with one attempt; what its folder refuses must not keep the others from theirs."""
        try:
            due = act(self._site, row, moment)
        except OSError as error:
            if self._troubles.get(row.id) != str(error):
                _log.warning("%s, attempt %d: %s", row.id, row.attempt, error)
            self._troubles[row.id] = str(error)
            return moment.boot_s + _TROUBLE_S
        self._troubles.pop(row.id, None)
        return due

    def look_after_waiters(self) -> bool:
        """See that there is a Keeper while something is QUEUED or may be again; return whether that is so; needs the lock.

        The Keeper gets its lock from here, so that two steps in a row never start two.
        """
        state, store = self._site.state, self._site.store
        if _needs_keeper(store) != state.waiting.exists():
            with store.transaction():  # no submit meanwhile
                if _needs_keeper(store):
                    state.waiting.touch(mode=0o600)
                else:
                    state.waiting.unlink(missing_ok=True)
        if not _needs_keeper(store):
            return False
        if not (self._site.keeper and succession.is_vacant(state.keeper_lock)):
            return True
        if (lock := succession.replace(state.keeper_lock)) is not None:
            try:
                pid = processes.start_keeper(self._site.keeper, keeping.variables(), state.keeper_log, lock)
                succession.sign(lock, pid)
            finally:
                os.close(lock)
        return True

    def _sweep(self, moment: Moment) -> None:
        """Remove stories whose time is over, and folders that no row knows."""
        site, moved = self._site, self._swept is None
        if stories.is_any_over(site.store, moment):
            with site.store.transaction() as connection:  # nobody submits one of these ids meanwhile
                ids, attempts = stories.forget(connection, moment)
                accounting.forget(connection, moment)
                for folder in [*map(site.state.workload, ids), *(site.state.attempt(*one).path for one in attempts)]:
                    moved |= self._discard(folder)
        changed = site.state.workloads.stat().st_mtime_ns, time.monotonic()
        if self._swept is None or (changed[0] != self._swept[0] and changed[1] > self._swept[1] + _SWEEP_S):
            with site.store.transaction():
                moved |= self._discard_leftovers()
            self._swept = changed
        if moved:
            shutil.rmtree(site.state.trash, ignore_errors=True)

    def _discard_leftovers(self) -> bool:
        """Remove what those left behind who were killed amid something; return whether folders were moved away for that."""
        state, store = self._site.state, self._site.store
        known = set(map(object_name, rows.ids(store)))
        moved = [self._discard(folder) for folder in state.workloads.iterdir() if folder.name not in known]
        for id, newest, lives in rows.with_secrets(store):
            starting.clear_lost_secrets(state, id, newest, lives=lives)
        return any(moved)

    def _discard(self, folder: Path) -> bool:
        """Move a folder out of the way at once; removing a long log takes longer."""
        for specification in folder.rglob("replica.json"):
            starting.clear_sockets(self._site.state, specification)
        self._site.state.trash.mkdir(mode=0o700, exist_ok=True)
        try:
            folder.rename(self._site.state.trash / f"{folder.name}-{time.time_ns()}")
        except FileNotFoundError:
            return False
        return True


def _needs_keeper(store: Store) -> bool:
    return waiting.is_any(store) or waiting.may_come_back(store)
