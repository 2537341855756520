"""What the Workloads of a place of virtual time want and have, as the queue's decisions are made from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from jupyter_gpu.backends.memory.devices import Devices
from jupyter_gpu.backends.memory.parts import Part
from jupyter_gpu.backends.memory.runs import Run
from jupyter_gpu.schema import Claim, Holding, amounts


class Clock:
    """Seconds since a place began."""

    def __init__(self, start: datetime) -> None:
        self._start = start

    def seconds(self, when: datetime) -> float:
        """Return a moment on the clock of `Claim` and `Holding`."""
        return (when - self._start).total_seconds()


def claim_of(run: Run, clock: Clock) -> Claim:
    """Return what those parts of a Workload want that have still to start."""
    spec, waiting = run.spec, run.waiting
    since = max(part.since for part in waiting)
    claim = replace(Claim.of(spec, run.sequence, clock.seconds(since)), called=run.called)
    if spec.max_runtime_s is not None:
        claim = replace(claim, max_runtime_s=max(part.left_s(spec.max_runtime_s) or 0.0 for part in waiting))
    if run.together:
        return claim
    active = sum(part.active for part in run.parts)
    at_once = None if spec.max_parallel is None else max(0, spec.max_parallel - active)
    return replace(claim, replicas=len(waiting), at_once=at_once)


def holdings_of(run: Run, clock: Clock, devices: Devices) -> Iterator[Holding]:
    """Yield what the parts of a Workload hold."""
    spec = run.spec
    for part in run.parts:
        if not part.active or part.admitted is None:
            continue
        yield Holding(
            id=spec.id,
            sequence=run.sequence,
            queue=spec.queue,
            priority=spec.priority,
            holds=amounts(spec.resources, len(part.ranks)),
            models=devices.models(part.held),
            device=spec.resources.accelerator.resource if spec.resources.gpus else None,
            rank=None if run.together else part.ranks[0],
            since_s=clock.seconds(part.admitted),
            ends_by_s=_ends_by_s(run, part, clock),
            grace_s=spec.grace_s,
            preemptible=spec.preemptible,
            leaving=part.stopping is not None,
            kind=spec.kind,
            name=spec.name,
            owner=spec.owner,
        )


def _ends_by_s(run: Run, part: Part, clock: Clock) -> float | None:
    """Return when a part will have ended at the latest."""
    if part.killed:
        return clock.seconds(part.killed)
    left = part.left_s(run.spec.max_runtime_s)
    if left is None or part.admitted is None:
        return None
    if part.started:
        return clock.seconds(part.started) + left + run.spec.grace_s
    return clock.seconds(part.admitted) + run.spec.start_timeout_s + left + run.spec.grace_s
