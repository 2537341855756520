"""Who is the Keeper: whoever has its lock, which a step may have handed to it; and what it is started with."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from jupyter_gpu.backends.local import succession
from jupyter_gpu.backends.local.processes import KEEPER_LOCK
from jupyter_gpu.backends.local.state import StateFolder
from jupyter_gpu.schema import LocalSettings

_VARIABLES = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "PYTHONPATH",
    "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",
)  # fmt: skip
_SETTINGS = "{settings}"
_PATIENCE_S = 0.2  # others look whether it is free by taking it for a moment


def take_leadership(lock: Path) -> int | None:
    """Return a descriptor that holds the Keeper's lock, or None if another process is the Keeper."""
    handed = os.environ.pop(KEEPER_LOCK, "")
    if handed.isdecimal() and _is_lock(int(handed), lock):
        os.set_inheritable(int(handed), False)
        succession.sign(int(handed), os.getpid())
        return int(handed)
    return succession.replace(lock, patience_s=_PATIENCE_S)


def variables() -> dict[str, str]:
    """Return the environment of a Keeper: what a Python needs, and nothing that is meant for a program or for one server."""
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def command(words: Sequence[str] | None, settings: LocalSettings, state: StateFolder) -> Sequence[str] | None:
    """Return a Keeper's command; ``{settings}`` in it becomes the settings, with the state folder that was found by them."""
    found = settings.model_copy(update={"state_folder": state.path}).model_dump_json()
    return None if words is None else [word.replace(_SETTINGS, found) for word in words]


def _is_lock(descriptor: int, lock: Path) -> bool:
    try:
        if not os.path.samestat(os.fstat(descriptor), lock.stat()):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # closed on the way here, or another's by now
        return False
    return True
