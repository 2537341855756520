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
    """What it has left of its limit."""
    called: bool = False
    """Whether others were told to yield to it (its Reason is `queue.preempting`): then it goes first in its queue."""
    name: str = ""
    owner: str = ""

    @property
    def gpus(self) -> int:
        """Devices of one replica."""
        return self.each[self.device] if self.device else 0

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
    ends_by_s: float | None = None
    """When it will have ended at the latest, by its limits; None if nothing limits it."""
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
