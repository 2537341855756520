"""Be a Workload's client: one process at a time, told by a lock that ends with it."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jupyter_gpu.backends.local import locks, rows, waiting
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.errors import BackendError, ConflictError
from jupyter_gpu.schema import Phase

_PATIENCE_S = 0.2  # a Keeper step looks whether a hold is free by taking it for a moment

_held: dict[tuple[int, Path], list[int]] = {}  # {(pid, lock): [descriptor, how often]}; the pid, for a forked child holds nothing
_mutex = threading.Lock()


def hold(site: Site, id: str) -> None:
    """Hold a Workload.

    Raises:
        ConflictError: another process holds it.
    """
    lock = site.state.hold_lock(id)
    with _mutex:
        if held := _held.get((os.getpid(), lock)):
            held[1] += 1
            return
        descriptor = locks.take(lock, patience_s=_PATIENCE_S)
        if descriptor is None:
            raise ConflictError(f"{id!r} is held by {_holder(lock)}")
        words = json.dumps(
            {"pid": os.getpid(), "host": platform.node(), "since": _now(), "what": Path(sys.argv[0]).name or "python"}
        )
        with suppress(OSError):  # a full disk: then nobody is told who it is
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, words.encode(), 0)
        _held[os.getpid(), lock] = [descriptor, 1]
    _note(site, id, held=True)


def let_go(site: Site, id: str) -> None:
    """Undo one `hold`."""
    lock = site.state.hold_lock(id)
    with _mutex:
        held = _held[os.getpid(), lock]
        held[1] -= 1
        if held[1]:
            return
        del _held[os.getpid(), lock]
        locks.release(held[0])
    _note(site, id, held=False)


def _note(site: Site, id: str, *, held: bool) -> None:
    """Write since when a QUEUED Workload has no client, for a Keeper step may come too seldom to see that."""
    with suppress(BackendError):  # a full disk: the next step sees it by the lock
        row = rows.find(site.store, id)
        if row is not None and row.phase == Phase.QUEUED and row.orphan_after_s is not None:
            with site.store.transaction() as connection:
                waiting.note_holding(connection, id, None if held else Moment.present().boot_s)


def _holder(lock: Path) -> str:
    """Return who holds a lock, in words."""
    try:
        facts: dict[str, Any] = json.loads(lock.read_bytes())
        return f"{facts['what']} (pid {facts['pid']} on {facts['host']}, since {facts['since']})"
    except (OSError, ValueError, KeyError, TypeError):  # it is just being written
        return "another process"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
