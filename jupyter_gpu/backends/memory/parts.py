"""The replicas of a Workload at a place of virtual time, in the groups that start and end together."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from jupyter_gpu.backends.memory.script import Script
from jupyter_gpu.schema import Kind, Phase, Reason, ReplicaStatus, Usage, WorkloadSpec

NODE = "memory-0"


@dataclass
class Replica:
    """One replica, in its newest attempt."""

    rank: int
    script: Script
    devices: tuple[str, ...] = ()
    """Ids of those it holds or held."""
    said: int = 0
    """How many of its lines it has said."""
    reason: Reason | None = None
    """How it ended; None while it has not."""


@dataclass
class Tenure:
    """The time in which one attempt held something."""

    attempt: int
    began: datetime
    gpus: int
    ended: datetime | None = None
    phase: Phase = Phase.STARTING


@dataclass
class Part:
    """What starts and ends together: all replicas of a Workload, or one of those that start as they fit."""

    ranks: range
    command: tuple[str, ...]
    attempt: int
    since: datetime
    """When it was QUEUED."""
    phase: Phase = Phase.QUEUED
    reason: Reason | None = None
    admitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    stopping: Reason | None = None
    """Why it must end, once somebody wants that."""
    killed: datetime | None = None
    """When it will be killed, if it lets that happen."""
    failures: int = 0
    """How many attempts failed by themselves."""
    ran_s: float = 0.0
    """What the attempts before this one took of its limit."""
    tenures: list[Tenure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replicas = self._replicas()

    def _replicas(self) -> list[Replica]:
        return [Replica(rank, Script.of(self.command, rank)) for rank in self.ranks]

    @property
    def alive(self) -> list[Replica]:
        """The replicas that have not ended."""
        return [replica for replica in self.replicas if replica.reason is None]

    @property
    def active(self) -> bool:
        """Whether it holds something."""
        return self.phase in (Phase.STARTING, Phase.RUNNING)

    @property
    def held(self) -> list[str]:
        """Ids of the devices it holds."""
        return [id for replica in self.replicas for id in replica.devices] if self.active else []

    def left_s(self, limit_s: float | None) -> float | None:
        """Return what this attempt may take of a limit over all attempts."""
        return None if limit_s is None else max(0.0, limit_s - self.ran_s)

    def retries_left(self, spec: WorkloadSpec) -> int:
        """Return how often it may still be tried again after it failed by itself."""
        return 0 if spec.kind is Kind.KERNEL else max(0, spec.retries - self.failures)

    def queue_again(self, now: datetime) -> None:
        """Begin the next attempt."""
        self.attempt, self.since, self.phase, self.reason = self.attempt + 1, now, Phase.QUEUED, None
        self.admitted = self.started = self.stopping = self.killed = None
        self.replicas = self._replicas()

    def statuses(self) -> list[ReplicaStatus]:
        """Return how its replicas stand."""
        node = NODE if self.admitted else None
        stand = [
            (replica, self.phase if replica.reason is None else replica.reason.final_phase, replica.reason or self.reason)
            for replica in self.replicas
        ]
        return [
            ReplicaStatus(rank=replica.rank, node=node, devices=replica.devices, phase=phase, reason=reason)
            for replica, phase, reason in stand
        ]


def usage_of(spec: WorkloadSpec, attempt: int, tenures: list[Tenure], now: datetime) -> Usage:
    """Return what all parts of a Workload used in one attempt."""
    ends = [tenure.ended for tenure in tenures if tenure.ended]
    lasts = len(ends) < len(tenures)
    phases = {tenure.phase for tenure in tenures}
    order = (Phase.RUNNING, Phase.STARTING, Phase.CANCELLED, Phase.FAILED, Phase.SUCCEEDED)
    gpus = spec.resources.gpus
    return Usage(
        id=spec.id,
        attempt=attempt,
        name=spec.name,
        owner=spec.owner,
        queue=spec.queue,
        kind=spec.kind,
        priority=spec.priority,
        resource=spec.resources.accelerator.resource if gpus else "",
        gpus=sum(tenure.gpus for tenure in tenures),
        started=min(tenure.began for tenure in tenures),
        ended=None if lasts else max(ends),
        phase=next(phase for phase in order if phase in phases),
        device_seconds=sum(tenure.gpus * ((tenure.ended or now) - tenure.began).total_seconds() for tenure in tenures),
    )
