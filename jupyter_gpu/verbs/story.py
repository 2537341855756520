"""What became of a Workload, in the order of time: its phases, and what its replicas reported between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jupyter_gpu.schema import Event, LogLine, Phase, Workload

_DIED = "kernel"


@dataclass(frozen=True)
class Told:
    """One thing that happened."""

    time: datetime
    attempt: int
    what: str
    """A word for machines: a phase, or ``started``, ``died``, ``replica_ended``."""
    message: str
    code: str | None = None
    """Of the phase's Reason."""
    lasted_s: float | None = None
    """How long it was so, up to the next phase; None where it still is, or it took no time."""

    @property
    def is_phase(self) -> bool:
        """Whether it is a phase, and nothing within one."""
        return self.what in set(Phase)


def story(workload: Workload, events: Sequence[Event], reports: Iterable[LogLine]) -> list[Told]:
    """Return what happened to a Workload, oldest first.

    Args:
        workload: as it stands.
        events: its phases, of all attempts, oldest first.
        reports: the report lines of its newest attempt, as far as its log can be had.
    """
    several = workload.spec.replicas > 1
    told = [one for line in reports for one in _of_report(line, several)]
    starts = {one.attempt: one for one in told if one.what == "started" and not several}
    phases = []
    for event, next_one in zip(events, [*events[1:], None], strict=True):
        message = event.reason.message if event.reason else ""
        if event.phase is Phase.RUNNING and (start := starts.pop(event.attempt, None)):
            message = "; ".join(
                part for part in (start.message, message) if part
            )  # where, and holding what, the phase can't tell
        lasts = (next_one.time - event.time).total_seconds() if next_one and not event.phase.is_final else None
        code = event.reason.code if event.reason else None
        phases.append(Told(event.time, event.attempt, event.phase.value, message, code, lasts))
    rest = [one for one in told if one.what != "started" or several or one.attempt in starts]
    return sorted((*phases, *rest), key=lambda one: one.time)  # stable: of the same time, phases first


def _of_report(line: LogLine, several: bool) -> Iterator[Told]:
    report: dict[str, Any] = line.report or {}
    rank = f"replica {line.replica}: " if several else ""
    if report.get("report") == "started":
        where = f"on {node}" if (node := report.get("node")) else ""
        holding = f"holding {', '.join(map(str, devices))}" if (devices := report.get("devices")) else ""
        words = ", ".join(part for part in (where, holding) if part)
        yield Told(line.time, line.attempt, "started", f"{rank}started {words}".rstrip() if several else words)
    elif report.get("report") == _DIED:
        yield Told(line.time, line.attempt, "died", f"{rank}the kernel died: {report.get('message') or _how(report)}")
    elif report.get("report") == "end" and several:  # of a single one the phase says it
        yield Told(line.time, line.attempt, "replica_ended", f"{rank}{report.get('message', 'ended')}")


def _how(report: dict[str, Any]) -> str:
    return f"signal {report['signal']}" if report.get("signal") else f"exit code {report.get('exit_code')}"
