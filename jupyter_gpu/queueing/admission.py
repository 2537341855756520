"""Admission in plain order: higher priority first, then order of arrival."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jupyter_gpu.schema import Reason, WorkloadSpec


@dataclass(frozen=True, slots=True)
class Claim:
    """What a QUEUED Workload asks for."""

    id: str
    sequence: int
    resource: str
    gpus: int
    """Devices of all replicas together."""
    priority: int = 0
    queue: str = "default"
    name: str = ""

    @classmethod
    def of(cls, spec: WorkloadSpec, sequence: int) -> Claim:
        """Return the claim of a Workload that arrived as number ``sequence``."""
        gpus = spec.resources.gpus * spec.replicas
        return cls(spec.id, sequence, spec.resources.accelerator.resource, gpus, spec.priority, spec.queue, spec.name)


@dataclass(frozen=True)
class Admission:
    """Who starts now, and for everybody else the place in line (1 is next) and why they wait."""

    start: tuple[str, ...] = ()
    positions: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, Reason] = field(default_factory=dict)


def admit(waiting: Iterable[Claim], free: Mapping[str, int], capacity: Mapping[str, int]) -> Admission:
    """Return who of the waiting starts with what is free.

    The order is priority, then sequence. A Workload that does not fit holds back all behind it that want the same kind of
    device, so that nobody is overtaken; one without devices never waits.

    Args:
        waiting: the QUEUED Workloads, in any order.
        free: devices that nobody holds, by resource name.
        capacity: devices in all, by resource name; for the words of the reason only.
    """
    left = dict(free)
    start: list[str] = []
    positions: dict[str, int] = {}
    reasons: dict[str, Reason] = {}
    blocked: dict[str, list[Claim]] = {}
    for claim in sorted(waiting, key=lambda claim: (-claim.priority, claim.sequence)):
        ahead = blocked.get(claim.resource, [])
        if claim.gpus == 0 or (not ahead and claim.gpus <= left.get(claim.resource, 0)):
            left[claim.resource] = left.get(claim.resource, 0) - claim.gpus
            start.append(claim.id)
            continue
        positions[claim.id] = len(ahead) + 1
        reasons[claim.id] = _busy(claim, ahead, left.get(claim.resource, 0), capacity.get(claim.resource, 0))
        blocked.setdefault(claim.resource, []).append(claim)
    return Admission(tuple(start), positions, reasons)


def _busy(claim: Claim, ahead: Sequence[Claim], free: int, capacity: int) -> Reason:
    words = f"waits for {claim.gpus} {claim.resource}: {free} of {capacity} free"
    if ahead:
        words += f", {len(ahead)} ahead (next is {ahead[0].name or ahead[0].id} with {ahead[0].gpus})"
    facts = {"resource": claim.resource, "asked": claim.gpus, "free": free, "capacity": capacity, "ahead": len(ahead)}
    return Reason(code="queue.busy", message=words, facts=facts)


def totals(claims: Iterable[Claim]) -> dict[str, int]:
    """Return the devices of all claims together, by resource name."""
    counts: Counter[str] = Counter()
    for claim in claims:
        counts[claim.resource] += claim.gpus
    return dict(counts)
