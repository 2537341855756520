"""Who is the Keeper: whoever has its lock, which a step may have handed to it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from jupyter_gpu.backends.local import locks
from jupyter_gpu.backends.local.processes import KEEPER_LOCK

_PATIENCE_S = 0.2  # others look whether it is free by taking it for a moment


def take_leadership(lock: Path) -> int | None:
    """Return a descriptor that holds the Keeper's lock, or None if another process is the Keeper."""
    handed = os.environ.pop(KEEPER_LOCK, "")
    if handed.isdecimal() and _is_lock(int(handed), lock):
        os.set_inheritable(int(handed), False)
        return int(handed)
    return locks.take(lock, patience_s=_PATIENCE_S)


def _is_lock(descriptor: int, lock: Path) -> bool:
    try:
        if not os.path.samestat(os.fstat(descriptor), lock.stat()):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # closed on the way here, or another's by now
        return False
    return True
