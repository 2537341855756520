"""Locks that the operating system gives back when their holder dies: `flock` on files of the state folder.

Whether a lock is free can only be learnt by taking it, shared and for some microseconds. So whoever wants one for real tries
more than once (`take` with ``patience_s``).
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_PAUSE_S = 0.002


def take(path: Path, *, patience_s: float = 0.0) -> int | None:
    """Return a descriptor that holds the lock alone, or None if another holds it; the file is made if need be.

    Args:
        path: the lock's file.
        patience_s: how long to go on trying.

    Raises:
        OSError: the file can't be opened.
    """
    deadline = time.monotonic() + patience_s
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() >= deadline:
                return None
            time.sleep(_PAUSE_S)
            continue
        if _is_same_file(path, descriptor):
            return descriptor
        os.close(descriptor)  # the file was removed meanwhile: whoever comes next would lock another one


def release(descriptor: int) -> None:
    """Give a lock back, whoever else may have a copy of the descriptor, like a process that is just being started."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_free(path: Path) -> bool:
    """Return whether nobody holds the lock; a file that is not there is nobody's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))
