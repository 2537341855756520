"""The limit of a program's memory: it is watched, and what was killed for want of memory is told so."""

from __future__ import annotations

import os
import time

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .family import Family
    from .run import Replica

    Cause = tuple[str, dict[str, Any]]

CODE = "end.out_of_memory"
_MIB, _GIB = 1 << 20, 1 << 30
_NEAR_S, _FAR_S = 0.25, 2.0
_FASTEST = 4 * _GIB  # bytes a second: what one thread was measured to fill, so that a look comes in time
_SHARE = 0.002  # of a core that the looks may take
_CGROUP = (
    ("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory.max"),
    ("/sys/fs/cgroup/memory/memory.max_usage_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNLIMITED = 1 << 60


class Watch:
    """Looks at a program's memory in the loop of a replica, and kills its processes when it is above the limit.

    What their pages come to is looked at first, which is cheap and never too little; only when that is above the limit, what
    they share is counted once.
    """

    def __init__(self, replica: Replica, family: Family, limit_bytes: int) -> None:
        self._replica, self._family, self._limit = replica, family, limit_bytes

    def look(self) -> None:
        """Look now, and again: the sooner, the less is left."""
        begun = time.thread_time()
        self._family.glance()
        used = self._family.resident_bytes()
        if used > self._limit:
            used = self._family.exact_bytes()
        self._replica.note_memory(used)
        if used > self._limit:
            self._replica.exceeded = too_much(used, self._limit)
            self._replica.kill()
            processes.kill_descendants(self._replica.spec["id"])  # also those that have left its group
        pace = min(max((self._limit - used) / _FASTEST, _NEAR_S), _FAR_S)
        cost = time.thread_time() - begun
        self._replica.at("memory", min(max(pace, cost / _SHARE), _FAR_S), self.look)


def cause(replica: Replica, signal: str | None) -> Cause | None:
    """Return what memory has to do with a program's death.

    Args:
        replica: whose program it was; more processes have died for want of memory since, or it was above its limit.
        signal: that ended it, if one did.
    """
    if replica.exceeded:
        return replica.exceeded
    if not replica.folder:
        return of_container()
    if replica.killed or signal != "SIGKILL":
        return None  # then somebody else's died for that
    if replica.is_scoped and replica.limit:
        return too_much(replica.limit, replica.limit)
    from .family import largest_bytes

    return of_machine(max(replica.peak_bytes, largest_bytes()))


def too_much(peak_bytes: int, limit_bytes: int) -> Cause:
    """Return the sentence and the facts of a program that went above its limit."""
    used, limit = format_bytes(peak_bytes), format_bytes(limit_bytes)
    words = "it used %s of memory, more than its limit of %s" % (used, limit)
    if peak_bytes <= limit_bytes or used == limit:  # where the system keeps the limit nobody gets above it
        words = "it wanted more memory than its limit of %s" % limit
    advice = "ask for more (memory: %s), or hold less at a time" % format_bytes(next_size(max(peak_bytes, limit_bytes)))
    return "%s: %s" % (words, advice), {"peak_memory_bytes": peak_bytes, "limit_bytes": limit_bytes}


def of_container() -> Cause:
    """Return the same for what this container's own limit ended."""
    peak, limit = container_figures()
    if limit is None:
        return "it was killed for using more memory than its limit", {}
    return too_much(limit if peak is None else min(peak, limit), limit)


def of_machine(peak_bytes: int) -> Cause:
    """Return the sentence and the facts of a program that the system ended because the machine had no memory left."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine = min(machine, container_figures()[1] or machine)
    words = "this machine ran out of memory (it has %s), and its system ended the program" % format_bytes(machine)
    return words + ": hold less at a time, or run less beside it", {"peak_memory_bytes": peak_bytes, "machine_bytes": machine}


def container_figures() -> tuple[int | None, int | None]:
    """Return the most memory that this container had, and its limit, in bytes; None where it is not known or there is none.

    Source: Documentation/admin-guide/cgroup-v2.rst (memory.peak, memory.max) and cgroup-v1/memory.rst of Linux.
    """
    for paths in _CGROUP:
        peak, limit = map(_number, paths)
        if peak is not None or limit is not None:
            return peak, limit
    return None, None


def next_size(used_bytes: int) -> int:
    """Return the next of the usual sizes, 1, 1.5, 2, 3, 4, 6... MiB, that is larger by a quarter: who was ended wanted more."""
    wanted, size = used_bytes * 5 // 4, _MIB
    while size < wanted:
        if size + size // 2 >= wanted:
            return size + size // 2
        size *= 2
    return size


def format_bytes(size: int) -> str:
    """Return a size for people: ``1.5 GiB``."""
    unit, name = (_GIB, "GiB") if size >= _GIB else (_MIB, "MiB")
    return "%.3g %s" % (size / unit, name) if size < 1000 * unit else "%d %s" % (size // unit, name)


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            number = int(file.read())
    except (OSError, ValueError):  # a limit may be "max"
        return None
    return number if number < _UNLIMITED else None
