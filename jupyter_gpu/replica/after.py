"""What comes after a replica: a local place's Keeper, if something waits and there is none."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself would cost the start of every kernel some milliseconds
if TYPE_CHECKING:
    from typing import Any

_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "LD_LIBRARY_PATH")
_FAILED_EXIT = 127


def start(spec: dict[str, Any]) -> None:
    """Start what the specification names, detached, where it is to be; this process ends soon."""
    command, condition, lock = (spec.get(name) for name in ("after", "after_if", "after_unless_locked"))
    if not command or (condition and not os.path.exists(condition)) or (lock and _is_locked(lock)) or os.fork():
        return
    try:
        os.setsid()
        os.close(int(os.environ["JUPYTER_GPU_LOCK_FD"]))
        os.execvpe(command[0], command, _variables(spec))
    finally:
        os._exit(_FAILED_EXIT)  # nothing that follows is this process' to do


def _variables(spec: dict[str, Any]) -> dict[str, str]:
    variables: dict[str, str] | None = spec.get("after_variables")
    if variables is not None:
        return variables
    return {name: spec["variables"][name] for name in _VARIABLES if name in spec["variables"]}


def _is_locked(path: str) -> bool:
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
