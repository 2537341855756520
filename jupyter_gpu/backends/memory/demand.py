"""What the Workloads of a place of virtual time want and have, as the queue's decisions are made from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from jupyter_gpu.backends.memory.devices import Devices
from jupyter_gpu.backends.memory.parts import Part
from jupyter_gpu.backends.memory.runs import Run
from jupyter_gpu.schema import Claim, Holding, amounts, longest_s


class Clock:
    """Seconds since a place began."""

    def __init__(self, start: datetime) -> None:
        self._start = start

    def seconds(self, when: datetime) -> float:
        """Return a moment on the clock of `Claim` and `Holding`."""
        return (when - self._start).total_seconds()


def claim_of(run: Run, clock: Clock) -> Claim:
    """Return what those parts of a Workload want that have still to start; the same object as long as it is the same."""
    stands = (run.spec.priority, run.called, [(part.phase, part.attempt) for part in run.parts])
    if run.claimed is None or run.claimed[0] != stands:
        run.claimed = (stands, _claim_of(run, clock))
    return run.claimed[1]


def _claim_of(run: Run, clock: Clock) -> Claim:
    spec, waiting = run.spec, run.waiting
    since = max(part.since for part in waiting)
    claim = replace(
        Claim.of(spec, run.sequence, clock.seconds(since)),
        called=run.called,
        max_runtime_s=max((left for part in waiting if (left := part.left_s(spec.max_runtime_s)) is not None), default=None),
        retries=max(part.retries_left(spec) for part in waiting),
    )
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
            max_runtime_s=part.left_s(spec.max_runtime_s),
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
    spec = run.spec
    retries = 0 if part.stopping else part.retries_left(spec)
    stays_s = longest_s(part.left_s(spec.max_runtime_s), spec.start_timeout_s, spec.grace_s, retries)
    if stays_s is None or part.admitted is None:
        return None
    if part.started:
        return clock.seconds(part.started) + stays_s - spec.start_timeout_s
    return clock.seconds(part.admitted) + stays_s
