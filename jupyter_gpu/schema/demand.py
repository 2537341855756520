"""Who wants what, and who has what: what the queue's decisions are made from.

These are plain dataclasses, for a Keeper step makes a thousand of them in some milliseconds; pydantic reads and shows them too.
All times here are seconds on one clock of the place that never jumps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jupyter_gpu.schema.queues import CPU, MEMORY
from jupyter_gpu.schema.resources import Resources
from jupyter_gpu.schema.workload import Kind, Start, WorkloadSpec

Amounts = Mapping[str, int]
"""By resource name: devices, ``cpu`` in thousandths of a core, ``memory`` in bytes."""


def amounts(resources: Resources, replicas: int = 1) -> dict[str, int]:
    """Return what so many replicas hold together."""
    one = {CPU: math.ceil(resources.cpus * 1000), MEMORY: resources.memory_bytes}
    if resources.gpus:
        one[resources.accelerator.resource] = resources.gpus
    return {resource: amount * replicas for resource, amount in one.items()}


def units(resource: str, amount: float) -> int:
    """Return a quota's number in the units of `Amounts`."""
    return round(amount * 1000) if resource == CPU else math.floor(amount)


def longest_s(left_s: float | None, start_timeout_s: float, grace_s: float, retries: int) -> float | None:
    """Return how long a Workload may hold what it gets: to start, to run and to end, in this try and those that may follow.

    Args:
        left_s: what it has left of its limit over all tries; None is no limit.
        start_timeout_s: what each try may take to start.
        grace_s: what each try may take to end.
        retries: how many tries may follow.
    """
    return None if left_s is None else left_s + (1 + retries) * (start_timeout_s + grace_s)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a Workload that is not all started wants."""

    id: str
    sequence: int
    queue: str
    priority: int
    each: Amounts
    """Of one replica."""
    device: str | None = None
    """Resource name of its devices; None if it wants none."""
    product: str | None = None
    """What the model of its devices must contain; None is any."""
    replicas: int = 1
    """How many have still to start."""
    together: bool = True
    """All at once, or as they fit."""
    at_once: int | None = None
    """As they fit: how many more may run now, by ``max_parallel``; None is no limit."""
    since_s: float = 0.0
    """Since when it has waited."""
    max_runtime_s: float | None = None
    """What it has left of its limit, over all tries."""
    start_timeout_s: float = 300.0
    """How long each try may take to start; its limit does not count that."""
    grace_s: float = 10.0
    """How long each try may take to end once it is told; its limit does not count that either."""
    retries: int = 0
    """How often it may still be tried again after it failed by itself."""
    called: bool = False
    """Whether others were told to yield to it (its Reason is `queue.preempting`): then it goes first in its queue."""
    name: str = ""
    owner: str = ""

    @property
    def gpus(self) -> int:
        """Devices of one replica."""
        return self.each[self.device] if self.device else 0

    @property
    def gpus_at_once(self) -> int:
        """Devices of all that starts together: of a gang all its replicas, else one."""
        return self.gpus * (self.replicas if self.together else 1)

    @property
    def stays_s(self) -> float | None:
        """How long it has what it gets at the most, over all tries; None if nothing limits it."""
        return longest_s(self.max_runtime_s, self.start_timeout_s, self.grace_s, self.retries)

    @classmethod
    def of(cls, spec: WorkloadSpec, sequence: int, since_s: float = 0.0) -> Claim:
        """Return the claim of a Workload of which nothing has started, that arrived as number ``sequence``."""
        together = spec.start is Start.TOGETHER
        return cls(
            id=spec.id,
            sequence=sequence,
            queue=spec.queue,
            priority=spec.priority,
            each=amounts(spec.resources),
            device=spec.resources.accelerator.resource if spec.resources.gpus else None,
            product=spec.resources.product,
            replicas=spec.replicas,
            together=together,
            at_once=None if together else spec.max_parallel,
            since_s=since_s,
            max_runtime_s=spec.max_runtime_s,
            start_timeout_s=spec.start_timeout_s,
            grace_s=spec.grace_s,
            retries=0 if spec.kind is Kind.KERNEL else spec.retries,
            name=spec.name,
            owner=spec.owner,
        )


@dataclass(frozen=True, slots=True)
class Holding:
    """What a Workload, or of one that starts as it fits a single replica, holds."""

    id: str
    sequence: int
    queue: str
    priority: int
    holds: Amounts
    """Of all replicas that are meant, together."""
    models: Mapping[str, int] = field(default_factory=dict)
    """Its devices by their model, where the place tells models apart."""
    device: str | None = None
    """Resource name of its devices; None if it has none."""
    rank: int | None = None
    """The one replica that is meant; None: all of them, which end together."""
    since_s: float = 0.0
    """When it was admitted."""
    max_runtime_s: float | None = None
    """What it had left of its limit when it was admitted."""
    ends_by_s: float | None = None
    """When it will have ended for good at the latest, by its limits and with all its retries; None if nothing limits it."""
    preemptible: bool = True
    grace_s: float | None = None
    """How long it may take to end once it is told; None if that is not known."""
    leaving: bool = False
    """Whether it has been told to end: what it holds becomes free soon."""
    kind: Kind = Kind.BATCH
    name: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Stock:
    """The devices of one resource name and model."""

    resource: str
    model: str
    """What the vendor calls it; empty where the place does not tell."""
    capacity: int
    free: int
    """Those that nobody holds, and nobody else computes on."""
