"""What a decision is made from, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jupyter_gpu.schema import Claim, Holding, QueueSet, Reason, Stock


@dataclass(frozen=True)
class State:
    """All that a place knows when it decides. Times are seconds on one clock that never jumps."""

    claims: Sequence[Claim]
    """Of the Workloads that have something left to start, in any order."""
    holdings: Sequence[Holding]
    stocks: Sequence[Stock]
    queues: QueueSet
    now_s: float = 0.0


@dataclass(frozen=True)
class Yielding:
    """One that must make room."""

    holding: Holding
    by: Claim
    reason: Reason
    """``end.preempted``; the sentence and the facts name by whom and by which rule."""


@dataclass(frozen=True)
class Decision:
    """What follows from a `State`: who starts, who must yield, and of all others why they wait."""

    starts: Mapping[str, int] = field(default_factory=dict)
    """How many replicas of a Workload start now, by its id, in the order in which they take their devices."""
    models: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What they take: devices of all replicas that start, by model."""
    yielding: tuple[Yielding, ...] = ()
    positions: Mapping[str, int] = field(default_factory=dict)
    """Of those with no replica that runs or starts: place in their queue, 1 is next."""
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    """Of all that still want something. Equal for equal wants of a queue, so that few of them change from step to step."""
    look_again_s: float | None = None
    """When time alone may change the decision; None if it never does."""
