"""What was asked for at a place of virtual time, and what became of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jupyter_gpu.backends.base import PROTOCOL, Document
from jupyter_gpu.backends.memory.parts import Part, usage_of
from jupyter_gpu.schema import Claim, Event, LogLine, Phase, Reason, Start, Usage, Workload, WorkloadSpec, WorkloadStatus


@dataclass
class Run:
    """What was asked for, from its submission to its end; an attempt at it may be followed by others of the place's own."""

    asked: WorkloadSpec
    first: int
    """Number of its first attempt."""
    sequence: int
    created: datetime
    secrets: Mapping[str, str]
    reason: Reason | None = None
    position: int | None = None
    called: bool = False
    """Whether it waits for what others are giving back to it."""
    stopping: Reason | None = None
    """Why all of it must end, once somebody wants that."""
    claimed: tuple[object, Claim] | None = None
    """What it wanted when it was last asked, and how it stood then."""
    ended: datetime | None = None

    def __post_init__(self) -> None:
        self.spec = self.asked
        """As it stands now: its priority may have become another."""
        count = self.asked.replicas
        ranks = [range(count)] if self.together else [range(rank, rank + 1) for rank in range(count)]
        self.parts = [Part(some, self.asked.command, self.first, self.created) for some in ranks]

    @property
    def together(self) -> bool:
        """Whether all its replicas start at once."""
        return self.asked.start is Start.TOGETHER

    @property
    def attempt(self) -> int:
        """The newest attempt at any part of it."""
        return max(part.attempt for part in self.parts)

    @property
    def waiting(self) -> list[Part]:
        """The parts that have still to start."""
        return [part for part in self.parts if part.phase is Phase.QUEUED]

    @property
    def phase(self) -> Phase:
        """Where it stands as a whole."""
        if self.ended and self.reason:
            return self.reason.final_phase
        phases = {part.phase for part in self.parts}
        return next((phase for phase in (Phase.RUNNING, Phase.STARTING) if phase in phases), Phase.QUEUED)

    def status(self) -> WorkloadStatus:
        """Return how it stands."""
        replicas = tuple(status for part in self.parts for status in part.statuses())
        return WorkloadStatus(
            id=self.spec.id,
            phase=self.phase,
            ready=all(replica.phase is Phase.RUNNING for replica in replicas),
            reason=self.reason,
            attempt=self.attempt,
            position=self.position,
            replicas=replicas,
            created=self.parts[0].since if self.together else self.created,
            started=min((part.started for part in self.parts if part.started), default=None),
            ended=self.ended,
            sequence=self.sequence,
        )

    def over(self, tries: range) -> bool:
        """Whether none of these attempts goes on."""
        return self.ended is not None or self.attempt >= tries.stop

    def outcome(self) -> Reason:
        """Return why it ended as it did, when all its parts have."""
        reasons = [part.reason for part in self.parts if part.reason]
        if len(reasons) == 1:
            return reasons[0]
        if self.stopping:
            return self.stopping
        failed = [part.ranks[0] for part in self.parts if part.phase is Phase.FAILED]
        if not failed:
            return Reason(code="end.completed", message=f"all {len(reasons)} replicas succeeded")
        first = reasons[failed[0]]
        words = f"{len(failed)} of {len(reasons)} replicas failed; replica {failed[0]}: {first.message}"
        return Reason(code=first.code, message=words, facts={**first.facts, "failed": failed})

    def documents(self) -> tuple[Document, ...]:
        """Return what a place with documents would write for it."""
        spec = self.asked.model_dump(mode="json")
        workload: dict[str, Any] = {"document": "workload", "protocol": PROTOCOL, "attempt": self.first, "spec": spec}
        secret = {"document": "secret", "protocol": PROTOCOL, "id": self.spec.id, "names": sorted(self.secrets)}
        return (workload, secret) if self.secrets else (workload,)


@dataclass
class Story:
    """All that was asked for under one id, the newest last; what was said, what became of it, and who holds it."""

    owner: str
    runs: list[Run]
    unheld_since: datetime
    holder: str | None = None
    holds: int = 0
    log: list[LogLine] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def run(self) -> Run:
        """What was asked for last."""
        return self.runs[-1]

    def tries(self, attempt: int | None) -> range:
        """Return the attempts that are meant by one, or by none: the newest, of a Workload or of each part of it."""
        run = self.run
        if attempt is not None:
            return range(attempt, attempt + 1)
        return range(run.attempt, run.attempt + 1) if run.together else range(run.first, sys.maxsize)

    def workload(self) -> Workload:
        """Return what the place shows of it."""
        return Workload(spec=self.run.spec, status=self.run.status())

    def note(self, now: datetime) -> None:
        """Write down how it stands, if that is news."""
        run = self.run
        attempt, phase, reason = run.attempt, run.phase, run.reason
        last = self.events[-1] if self.events else None
        if last and last.attempt == attempt and last.phase is phase:
            if reason is None or (last.reason and last.reason.code == reason.code):
                return
            if last.reason is None and last.time == now:
                self.events.pop()  # it never stood so for any time
        self.events.append(Event(time=now, attempt=attempt, phase=phase, reason=reason))

    def usage(self, now: datetime) -> list[Usage]:
        """Return what each attempt used."""
        return [
            usage_of(run.spec, attempt, tenures, now)
            for run in self.runs
            for attempt in range(run.first, run.attempt + 1)
            if (tenures := [one for part in run.parts for one in part.tenures if one.attempt == attempt])
        ]
