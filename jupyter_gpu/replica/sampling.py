"""What a program uses while it runs: samples, reports of them in its log, and totals. Loaded only once the program runs.

A sample is taken every 5 s: CPU and memory of all its processes, and use and memory of its own devices. A device counts as idle
in a sample that finds it busy for less than 1 % of the time (NVML tells whole percents of the last second or less).
"""

from __future__ import annotations

import os
import time

from . import memory, report
from .family import Family, largest_bytes
from .nvml import Gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .run import Replica

SAMPLE_S = 5.0
_SAMPLES_A_REPORT = 6
_ANSWER_S = 0.5  # what the driver has to answer before a sample is taken
_BUSY = 0.01


class Sampler:
    """Takes samples in the loop of a replica; the first report comes with the first sample, and then one with every sixth."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._family = replica, Family(replica.spec["id"])
        self._gpus = Gpus(replica.devices)
        self._pause_s = float(replica.spec.get("sample_s") or SAMPLE_S)
        self._answer_s = min(_ANSWER_S, self._pause_s / 2)
        self._sampled = self._reported = replica.began
        self._cpu_s = self._reported_cpu_s = 0.0
        self._measured_s = self._idle_s = 0.0
        self._memory: list[int] = []
        self._readings: dict[str, list[dict[str, Any]]] = {}
        self._has_reported = False

    def start(self) -> None:
        """Take the first sample soon, and watch the memory from now on where that is to be done."""
        self._next()
        if self._replica.limit and not self._replica.is_scoped:
            memory.Watch(self._replica, self._family, self._replica.limit).look()

    def totals(self) -> dict[str, float]:
        """Return what was used so far; the keys of ``usage.json``."""
        return {
            "measured_device_s": round(self._measured_s, 3),
            "idle_device_s": round(self._idle_s, 3),
            "cpu_s": round(self._cpu_s, 3),
            "peak_memory_bytes": self._replica.peak_bytes,
        }

    def close(self) -> dict[str, float]:
        """Report what was not yet, once all processes have ended and are waited for, and return the totals."""
        self._family.pids.clear()
        self._cpu_s = max(self._cpu_s, self._family.cpu_s())
        self._replica.note_memory(largest_bytes())
        if not self._replica.folder:
            self._replica.note_memory(memory.container_figures()[0] or 0)
        if self._memory:
            self._report(time.monotonic())
        self._keep()
        return self.totals()

    def _next(self) -> None:
        self._replica.at("sample", self._pause_s - self._answer_s, self._ask)

    def _ask(self) -> None:
        self._gpus.ask()
        self._replica.at("sample", self._answer_s, self._sample)

    def _sample(self) -> None:
        now = time.monotonic()
        self._family.look()
        self._cpu_s = max(self._cpu_s, self._family.cpu_s())
        self._memory.append(self._family.memory_bytes())
        self._replica.note_memory(self._memory[-1])
        for reading in self._gpus.take():
            self._readings.setdefault(reading["id"], []).append(reading)
            if reading["utilization"] is not None:
                self._measured_s += now - self._sampled
                self._idle_s += now - self._sampled if reading["utilization"] < _BUSY else 0.0
        self._sampled = now
        self._replica.note_kills()
        if not self._has_reported or len(self._memory) >= _SAMPLES_A_REPORT:
            self._report(now)
            self._keep()
        self._next()

    def _report(self, now: float) -> None:
        cores = (self._cpu_s - self._reported_cpu_s) / max(now - self._reported, 0.001)
        gpus = [_mean(id, readings) for id, readings in self._readings.items()]
        line = report.frame("sample", cpu=round(cores, 3), memory_bytes=max(self._memory), gpus=gpus)
        self._replica.log.report(line)
        self._reported, self._reported_cpu_s, self._has_reported = now, self._cpu_s, True
        self._memory, self._readings = [], {}

    def _keep(self) -> None:
        if self._replica.folder:
            try:
                report.write_whole(os.path.join(self._replica.folder, "usage.json"), self.totals())
            except OSError:
                pass  # of a full disk the program shall not learn by us


def _mean(id: str, readings: list[dict[str, Any]]) -> dict[str, Any]:
    used = [reading["utilization"] for reading in readings if reading["utilization"] is not None]
    memory = [reading["memory_bytes"] for reading in readings if reading["memory_bytes"] is not None]
    return {
        "id": id,
        "utilization": round(sum(used) / len(used), 3) if used else None,
        "memory_bytes": max(memory) if memory else None,
    }
