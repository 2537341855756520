"""What became of a Workload, in the order of time: folded from its status and the reports in its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jupyter_gpu.schema import LogLine, Workload

_DIED = "kernel"


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    time: datetime
    what: str
    """A word for machines: created, started, died, ended."""
    message: str


def story(workload: Workload, reports: Iterable[LogLine]) -> list[Event]:
    """Return what happened to a Workload, oldest first.

    Args:
        workload: as it stands.
        reports: the report lines of its newest attempt; where there are none, its status tells less.
    """
    status = workload.status
    events = [Event(status.created, "created", "asked for")]
    told = [event for line in reports for event in _of_report(line, workload)]
    events += told
    kinds = {event.what for event in told}
    if status.started and "started" not in kinds:
        events.append(Event(status.started, "started", "started"))
    if status.ended:
        why = f": {status.reason.message}" if status.reason else ""
        events.append(Event(status.ended, "ended", f"{status.phase.value}{why}"))
    return sorted(events, key=lambda event: event.time)  # stable: of the same time, as told


def _of_report(line: LogLine, workload: Workload) -> Iterator[Event]:
    report: dict[str, Any] = line.report or {}
    rank = f"replica {line.replica}: " if workload.spec.replicas > 1 else ""
    if report.get("report") == "started":
        where = f" on {node}" if (node := report.get("node")) else ""
        holding = f", holding {', '.join(map(str, devices))}" if (devices := report.get("devices")) else ""
        again = f" (attempt {line.attempt})" if line.attempt > 1 else ""
        yield Event(line.time, "started", f"{rank}started{where}{holding}{again}")
    elif report.get("report") == _DIED:
        yield Event(line.time, "died", f"{rank}the kernel died: {report.get('message') or _how(report)}")
    elif report.get("report") == "end" and workload.spec.replicas > 1:  # of a single one the status says it
        yield Event(line.time, "replica_ended", f"{rank}{report.get('message', 'ended')}")


def _how(report: dict[str, Any]) -> str:
    return f"signal {report['signal']}" if report.get("signal") else f"exit code {report.get('exit_code')}"
