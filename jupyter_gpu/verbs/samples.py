"""What a Workload uses, by the newest sample that each of its replicas took of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jupyter_gpu.schema import LogLine, Resources, format_bytes
from jupyter_gpu.verbs.words import utc_time


def newest(reports: Iterable[LogLine]) -> dict[int, LogLine]:
    """Return the newest sample of each replica, by its rank."""
    return {line.replica: line for line in reports if (line.report or {}).get("report") == "sample"}


def as_data(line: LogLine) -> dict[str, Any]:
    """Return a sample for machines; what was not measured is None."""
    report = line.report or {}
    return {
        "time": utc_time(line.time),
        "replica": line.replica,
        "cpus": _number(report.get("cpu")),
        "memory_bytes": _number(report.get("memory_bytes")),
        "gpus": [
            {
                "id": str(gpu.get("id", "")),
                "utilization": _number(gpu.get("utilization")),
                "memory_bytes": _number(gpu.get("memory_bytes")),
            }
            for gpu in report.get("gpus") or ()
            if isinstance(gpu, Mapping)
        ],
    }


def as_text(line: LogLine, resources: Resources) -> str:
    """Return a sample for people: ``GPU 37 %, 9.1 GiB; CPU 0.8; memory 2.1 GiB of 4 GiB``."""
    sample = as_data(line)
    gpus = []
    for gpu in sample["gpus"]:
        used = "not measured" if gpu["utilization"] is None else f"{gpu['utilization'] * 100:.0f} %"
        gpus.append(f"GPU {used}" + (f", {format_bytes(int(gpu['memory_bytes']))}" if gpu["memory_bytes"] is not None else ""))
    cpu = [] if sample["cpus"] is None else [f"CPU {sample['cpus']:.1f}"]
    memory = sample["memory_bytes"]
    held = [] if memory is None else [f"memory {format_bytes(int(memory))} of {format_bytes(resources.memory_bytes)}"]
    return "; ".join((*gpus, *cpu, *held))


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
