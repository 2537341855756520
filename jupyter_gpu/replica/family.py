"""The living processes of a program, and what they use, as /proc tells it. Loaded only once the program runs.

Where there is no /proc (macOS) there are none, and all figures are 0.

Source: proc_pid_stat(5), proc_pid_statm(5), proc_pid_smaps(5).
"""

from __future__ import annotations

import os
import sys
import time

from . import processes

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_EXACT_SHARE = 0.0005  # of a core that exact figures of shared memory may cost: 7 ms a GiB were measured
_LOOK_SHARE = 0.0005  # and looking at every thread: 20 microseconds each
_GLANCE_S = 1.0


class Family:
    """All that descends from this process, but for other Workloads and what they started."""

    def __init__(self, id: str) -> None:
        self.pids: set[int] = set()
        self._id = id
        self._known: set[int] = set()
        self._own_share = 1.0
        self._share_after = self._look_after = self._glance_after = 0.0  # on the monotonic clock

    def look(self) -> None:
        """Find all of them, but no more often than may be: it takes time for each of their threads."""
        if time.monotonic() < self._look_after:
            self.glance()
            return
        begun = time.thread_time()
        self._known = _all_pids()
        self.pids = set(processes.descendants(os.getpid(), self._id))
        self._glance_after = time.monotonic() + _GLANCE_S
        self._look_after = time.monotonic() + (time.thread_time() - begun) / _LOOK_SHARE

    def glance(self) -> None:
        """Find those that are new since, by their parents, once a second: quick, whatever the number of threads."""
        if time.monotonic() < self._glance_after:
            return
        self._glance_after = time.monotonic() + _GLANCE_S
        now = _all_pids()
        parents = {pid: _parent(pid) for pid in now - self._known}
        self._known = now
        self.pids &= now
        while found := {pid for pid, parent in parents.items() if parent in self.pids or parent == os.getpid()}:
            parents = {pid: parent for pid, parent in parents.items() if pid not in found}
            self.pids |= {pid for pid in found if not processes.is_anothers(pid, self._id)}

    def cpu_s(self) -> float:
        """Return the seconds of CPU that the program has used so far, with those of its processes that have ended."""
        ours = os.times()
        return ours.children_user + ours.children_system + sum(map(_cpu_s, self.pids))

    def resident_bytes(self) -> int:
        """Return their memory together; what several share is counted for each of them."""
        return sum(map(_resident_bytes, self.pids))

    def exact_bytes(self) -> int:
        """Return their memory together; what several share is counted once. It costs some ms for each GiB."""
        return sum(map(_proportional_bytes, self.pids))

    def memory_bytes(self) -> int:
        """Return their memory together, with a share of it that several have in common as it was found some time ago."""
        resident = self.resident_bytes()
        if len(self.pids) < 2:
            return resident
        if time.monotonic() >= self._share_after:
            begun = time.thread_time()
            exact = self.exact_bytes()
            self._share_after = time.monotonic() + (time.thread_time() - begun) / _EXACT_SHARE
            self._own_share = min(1.0, exact / resident) if resident else 1.0
        return int(resident * self._own_share)


def largest_bytes() -> int:
    """Return the most memory that any one process had of those that have ended and were waited for."""
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1024 if sys.platform == "linux" else 1)


def _all_pids() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdecimal()}
    except OSError:
        return set()


def _read(pid: int, name: str) -> bytes:
    try:
        with open("/proc/%d/%s" % (pid, name), "rb", 0) as file:
            return file.read()
    except OSError:  # it has ended
        return b""


def _fields(pid: int) -> list[bytes]:
    """Return the fields of a process' stat from the third on; empty when it is gone."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _parent(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def _cpu_s(pid: int) -> float:
    return sum(map(int, _fields(pid)[11:15])) / _TICKS  # its own user and system time, and of its children that it has waited for


def _resident_bytes(pid: int) -> int:
    fields = _read(pid, "statm").split()
    return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else 0


def _proportional_bytes(pid: int) -> int:
    for line in _read(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return _resident_bytes(pid)  # one that may not be looked into, like a program of another account
