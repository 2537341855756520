"""Who the processes are that compute on a device and are not ours."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable
from pathlib import Path


def strangers(pids: Iterable[int], is_ours: Callable[[int], bool]) -> tuple[str | None, bool]:
    """Return who else computes, for people, and whether none of them can be seen from here; None if nobody does.

    Args:
        pids: of all processes that compute, as the driver tells them: inside a container they may be numbers of the host, or 0.
        is_ours: whether a process belongs to one of our Workloads.
    """
    others = [(pid, _seen(pid)) for pid in dict.fromkeys(pids) if not (pid and is_ours(pid))]
    words = [seen or (f"pid {pid}" if pid else "an unknown process") for pid, seen in others]
    return ", ".join(words) or None, bool(others) and not any(seen for _, seen in others)


def _seen(pid: int) -> str | None:
    """Return a process' account, command and number; None for one that can't be seen from here, or is just gone."""
    folder = Path(f"/proc/{pid}")
    try:
        uid, command = folder.stat().st_uid, (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return None
    return f"{account(uid)} ({command}, pid {pid})"


def account(uid: int | None = None) -> str:
    """Return the name of an account, of this process' own when none is given."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
