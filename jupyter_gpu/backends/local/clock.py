"""What time it is: the wall's for people, the boot clock for whatever is decided by a duration, and which boot this is."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has no other, and its monotonic clock counts sleep


@functools.cache
def boot_id() -> str:
    """Return what names this boot of the machine; empty where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def boot_clock() -> float:
    """Return the seconds since the machine started, sleep included; no setting of the wall clock moves them."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True)
class Moment:
    """One point of time on all clocks."""

    now: datetime
    boot_s: float
    """Seconds since boot."""
    boot_id: str

    @classmethod
    def at(cls, now: datetime) -> Moment:
        """Return the moment that the wall clock calls ``now``: the present one, or as far from it as ``now`` is."""
        return cls(now, boot_clock() + (now - datetime.now(UTC)).total_seconds(), boot_id())

    @classmethod
    def present(cls) -> Moment:
        """Return this very moment."""
        return cls(datetime.now(UTC), boot_clock(), boot_id())

    @property
    def wall_s(self) -> float:
        """Seconds since 1970."""
        return self.now.timestamp()

    def when(self, boot_s: float) -> datetime:
        """Return what the wall clock says when the boot clock shows ``boot_s``."""
        return self.now + timedelta(seconds=boot_s - self.boot_s)
