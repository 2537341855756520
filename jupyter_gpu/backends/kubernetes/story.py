"""What became of a Workload's attempts, and what they used: pure functions of the Jobs and pods that there still are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jupyter_gpu.backends.kubernetes import reasons
from jupyter_gpu.backends.kubernetes.attempts import Attempt, Thing, condition, time_of
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.phases import status_of
from jupyter_gpu.schema import Event, Phase, Reason, Start, Usage, WorkloadStatus

_MEASURES = ("measured_device_s", "idle_device_s", "cpu_s", "peak_memory_bytes")


def events_of(attempts: Sequence[Attempt]) -> tuple[Event, ...]:
    """Return every phase of these attempts with its time and reason, oldest first.

    What a Workload waited for is told by the last complaint about it, for the API server keeps no earlier ones.
    """
    return tuple(event for attempt in attempts for event in _in_order(list(_events(attempt))))


def usage_of(attempt: Attempt, now: datetime) -> Usage | None:
    """Return what an attempt has used up to now; None if it never had a node."""
    status, spec = status_of(attempt), attempt.spec
    used = _used(attempt, status, now)
    if used is None:
        return None
    devices = spec.resources.gpus * spec.replicas
    return Usage(
        id=spec.id,
        attempt=attempt.number,
        name=spec.name,
        owner=spec.owner,
        queue=spec.queue,
        kind=spec.kind,
        priority=spec.priority,
        resource=spec.resources.accelerator.resource if devices else "",
        gpus=devices,
        started=used.since,
        ended=status.ended,
        phase=status.phase,
        device_seconds=used.replica_s * spec.resources.gpus,
        measured_device_seconds=used.measured["measured_device_s"],
        idle_device_seconds=used.measured["idle_device_s"],
        cpu_seconds=used.measured["cpu_s"],
        peak_memory_bytes=int(used.measured["peak_memory_bytes"]),
    )


def kept_usage(attempt: Attempt, status: WorkloadStatus) -> str | None:
    """Return what an attempt that has ended used, as it is written onto its Job, for its pods may not stay."""
    used = _used(attempt, status, status.ended or status.created)
    if used is None:
        return None
    return json.dumps({"since": used.since.isoformat(), "replica_s": used.replica_s, **used.measured})


def scheduled_at(pod: Thing) -> datetime | None:
    """Return when a pod got its node, and with it its devices."""
    scheduled = condition(pod, "PodScheduled")
    return time_of(scheduled["lastTransitionTime"]) if scheduled else None


@dataclass(frozen=True)
class _Used:
    """What the replicas of an attempt used."""

    since: datetime
    replica_s: float
    """Seconds that its replicas held what they have, together."""
    measured: Mapping[str, float]


def _used(attempt: Attempt, status: WorkloadStatus, now: datetime) -> _Used | None:
    if text := attempt.annotations.get(labels.USAGE):
        kept: dict[str, Any] = json.loads(text)
        return _Used(time_of(kept["since"]), float(kept["replica_s"]), {name: float(kept.get(name, 0)) for name in _MEASURES})
    times = {pod["metadata"]["uid"]: since for pod in attempt.pods if (since := scheduled_at(pod))}
    first = min(times.values(), default=status.started)
    if first is None:
        return None
    end = status.ended or now
    if attempt.spec.start is Start.TOGETHER:
        seconds = max(0.0, (end - first).total_seconds()) * attempt.spec.replicas
    else:
        spans = [(_finished_at(pod) or end) - times[pod["metadata"]["uid"]] for pod in attempt.pods if scheduled_at(pod)]
        seconds = sum(max(0.0, span.total_seconds()) for span in spans)
    told = [reasons.usage_of(pod) for pod in attempt.pods]
    return _Used(first, seconds, {name: sum(float(one.get(name, 0)) for one in told) for name in _MEASURES})


def _finished_at(pod: Thing) -> datetime | None:
    states = [one.get("state") or {} for one in (pod.get("status") or {}).get("containerStatuses") or ()]
    ends = [state["terminated"].get("finishedAt") for state in states if state.get("terminated")]
    return max((time_of(end) for end in ends if end), default=None)


def _events(attempt: Attempt) -> Iterator[Event]:
    status, number = status_of(attempt), attempt.number
    is_told_to_end = attempt.wish is not None
    now = None if is_told_to_end or status.phase.is_final else status

    def event(time: datetime, phase: Phase, otherwise: Reason | None = None) -> Event:
        return Event(time=time, attempt=number, phase=phase, reason=now.reason if now and now.phase is phase else otherwise)

    starting, running = _starting_at(attempt), status.started
    yield event(attempt.created, Phase.QUEUED, _waited_for(attempt))
    if starting:
        yield event(starting, Phase.STARTING)
    if running:
        yield event(running, Phase.RUNNING)
    if (text := attempt.annotations.get(labels.CANCELLED_AT)) and attempt.wish:
        asked = time_of(text)
        began = ((Phase.RUNNING, running), (Phase.STARTING, starting))
        phase = next((phase for phase, at in began if at and at <= asked), Phase.QUEUED)
        yield event(asked, phase, reasons.stopping(attempt.wish))
    if status.phase.is_final:
        yield Event(time=status.ended or attempt.created, attempt=number, phase=status.phase, reason=status.reason)


def _in_order(events: list[Event]) -> list[Event]:
    """Return events in the order of their times. Several clocks gave them: the last one, which may be the end, is right."""
    last = events[-1]
    ordered = sorted(events[:-1], key=lambda event: event.time)
    return [event.model_copy(update={"time": min(event.time, last.time)}) for event in ordered] + [last]


def _starting_at(attempt: Attempt) -> datetime | None:
    times = [since for pod in attempt.pods if (since := scheduled_at(pod))]
    if attempt.spec.start is Start.TOGETHER:
        return max(times) if len(times) >= attempt.spec.replicas else None
    return min(times, default=None)


def _waited_for(attempt: Attempt) -> Reason:
    """Return what the cluster said last while an attempt waited that does not wait any more."""
    if attempt.trouble.get(attempt.uid, {}).get("FailedCreate"):
        return reasons.without_pod(attempt)
    words = (attempt.trouble.get(pod["metadata"]["uid"], {}).get("FailedScheduling") for pod in attempt.pods)
    if said := next(filter(None, words), None):
        return reasons.not_scheduled(attempt.spec, said)
    return Reason(code="queue.submitted", message=f"it waited for {reasons.wanted(attempt.spec)}")
