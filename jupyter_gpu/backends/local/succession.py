"""After an upgrade: a Keeper of older code may still have the Keeper's lock, but can't change the store any more. It must go.

The lock's file says who holds it, and which version of the store that one writes. The code before this rule wrote nothing: there
the words are missing, or those of one that has gone. Where there is no /proc (macOS) nobody is found to be ended; such a Keeper
leaves by itself a minute after it could not write.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jupyter_gpu.backends.local import locks, processes
from jupyter_gpu.backends.local.store import MIGRATIONS

_PROC = Path("/proc")
_GONE_S = 2.0


def sign(descriptor: int, pid: int) -> None:
    """Write into the Keeper's lock, which is held, who holds it."""
    with suppress(OSError):  # a full disk; then whoever steps next takes this Keeper for an older one, and replaces it
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{len(MIGRATIONS)} {pid}".encode(), 0)


def replace(lock: Path, *, patience_s: float = 0.0) -> int | None:
    """Take the Keeper's lock, ending a Keeper of older code that has it; None if one of today's code has it.

    Raises:
        OSError: the lock can't be opened.
    """
    descriptor = locks.take(lock, patience_s=patience_s)
    if descriptor is None and not _is_of_today(lock) and (holders := list(_holders(lock))):
        for pid in holders:
            processes.send(pid, signal.SIGKILL)
        descriptor = locks.take(lock, patience_s=_GONE_S)
    if descriptor is not None:
        sign(descriptor, os.getpid())
    return descriptor


def is_vacant(lock: Path) -> bool:
    """Return whether the Keeper's lock is free, or held by one of older code."""
    return locks.is_free(lock) or not _is_of_today(lock)


def _is_of_today(lock: Path) -> bool:
    """Return whether the one that the lock's file names lives, and writes stores like this code, or newer ones."""
    try:
        version, pid = map(int, lock.read_text().split())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return False
    return version >= len(MIGRATIONS)


def _holders(lock: Path) -> Iterator[int]:
    """Yield the other processes that hold a lock for writing.

    Source: Documentation/filesystems/proc.rst of Linux, section 3.8 (fdinfo).
    """
    there = lock.stat()
    for folder in _PROC.glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # it ended meanwhile, or is another account's
            for descriptor in (folder / "fd").iterdir():
                if _is(descriptor, there) and "WRITE" in (folder / "fdinfo" / descriptor.name).read_text():
                    yield int(folder.name)


def _is(descriptor: Path, there: os.stat_result) -> bool:
    try:
        return os.path.samestat(descriptor.stat(), there)
    except OSError:
        return False
