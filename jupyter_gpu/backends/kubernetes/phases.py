"""How a Workload stands, from its Job, its pods and the annotations: a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jupyter_gpu.backends.kubernetes import reasons
from jupyter_gpu.backends.kubernetes.attempts import Attempt, Thing, condition, rank_of, time_of
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.schema import (
    Phase,
    Reason,
    ReplicaStatus,
    Resources,
    Start,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
    format_bytes,
)

_ENDED_PHASES = {"Succeeded": Phase.SUCCEEDED, "Failed": Phase.FAILED}


@dataclass(frozen=True)
class Sizes:
    """The most that any one node of the cluster could hold, by resource name: devices, ``cpu`` in cores, ``memory`` in bytes."""

    largest: Mapping[str, float]

    def too_large(self, resources: Resources) -> str | None:
        """Return in words what no node could ever hold of a replica; None if some node could."""
        device = resources.accelerator.resource
        if resources.gpus > self.largest.get(device, 0):
            return f"it asks for {resources.gpus} {device}, and the largest node has {self.largest.get(device, 0):g}"
        if resources.cpus > self.largest.get("cpu", 0):
            return f"it asks for {resources.cpus:g} cores, and the largest node has {self.largest.get('cpu', 0):g}"
        if resources.memory_bytes > self.largest.get("memory", 0):
            largest = format_bytes(int(self.largest.get("memory", 0)))
            return f"it asks for {format_bytes(resources.memory_bytes)} of memory, and the largest node has {largest}"
        return None


@dataclass(frozen=True)
class _Stand:
    """How one replica stands, with the times that `ReplicaStatus` has no room for."""

    status: ReplicaStatus
    is_up: bool = False
    scheduled: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None


def workload_of(attempt: Attempt, sizes: Sizes | None = None) -> Workload:
    """Return a Workload as its newest attempt shows it."""
    return Workload(spec=attempt.spec, status=status_of(attempt, sizes))


def status_of(attempt: Attempt, sizes: Sizes | None = None) -> WorkloadStatus:
    """Return how an attempt stands.

    Args:
        attempt: its Job and pods.
        sizes: what the nodes could hold, if nodes can be listed and none will be added.
    """
    stands = _stands(attempt, sizes)
    phase, reason = _overall(attempt, stands)
    told = attempt.annotations.get(labels.STARTED)
    started = min((stand.started for stand in stands if stand.started), default=time_of(told) if told else None)
    return WorkloadStatus(
        id=attempt.id,
        phase=phase,
        ready=phase is Phase.RUNNING and all(stand.is_up for stand in stands),
        reason=reason,
        attempt=attempt.number,
        replicas=tuple(_shown(stand.status, attempt, phase, reason) for stand in stands),
        created=attempt.created,
        started=started,
        ended=_ended(attempt, stands) if phase.is_final else None,
        sequence=int(attempt.annotations.get(labels.SEQUENCE, "0")),
    )


def has_ended(pod: Thing) -> bool:
    """Whether a pod's last process is gone."""
    return (pod.get("status") or {}).get("phase") in _ENDED_PHASES


def starting_since(attempt: Attempt) -> datetime:
    """Return since when its pods have had nodes: the time that ``start_timeout_s`` counts from."""
    scheduled = [c["lastTransitionTime"] for pod in attempt.pods if (c := condition(pod, "PodScheduled"))]
    return max(map(time_of, scheduled), default=attempt.created)


def _stands(attempt: Attempt, sizes: Sizes | None) -> list[_Stand]:
    pods: dict[int, Thing] = {}
    for pod in sorted(attempt.pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])):
        pods[rank_of(pod)] = pod  # of several for one rank, the newest
    too_large = sizes.too_large(attempt.spec.resources) if sizes else None
    return [_stand(attempt, rank, pods.get(rank), too_large) for rank in range(attempt.spec.replicas)]


def _stand(attempt: Attempt, rank: int, pod: Thing | None, too_large: str | None) -> _Stand:
    if pod is None:
        return _Stand(ReplicaStatus(rank=rank, phase=Phase.QUEUED, reason=reasons.without_pod(attempt)))
    container = _container(pod)
    if ended := _ENDED_PHASES.get(pod["status"].get("phase", "")):
        return _stand_of_ended(attempt, rank, pod, ended)
    node, is_leaving = pod["spec"].get("nodeName"), bool(pod["metadata"].get("deletionTimestamp"))
    started, is_up = None, False
    if running := (container.get("state") or {}).get("running"):
        phase, reason = Phase.RUNNING, _unreachable(pod)
        started, is_up = time_of(running["startedAt"]), bool(pod["status"].get("podIP")) and not is_leaving
    elif node:
        phase, reason = Phase.STARTING, reasons.starting(pod, container, attempt.trouble.get(pod["metadata"]["uid"], {}))
    else:
        phase, reason = Phase.QUEUED, reasons.unscheduled(pod, attempt.spec, too_large)
    reason = _leaving(pod) if is_leaving else reason
    return _Stand(ReplicaStatus(rank=rank, phase=phase, reason=reason, node=node), is_up=is_up, started=started)


def _stand_of_ended(attempt: Attempt, rank: int, pod: Thing, ended: Phase) -> _Stand:
    container = _container(pod)
    last = (container.get("state") or {}).get("terminated") or {}
    reason = reasons.ended(pod, container, attempt.spec)
    phase = ended if reason.final_phase is Phase.CANCELLED else reason.final_phase  # a program's word does not cancel
    return _Stand(
        ReplicaStatus(rank=rank, phase=phase, reason=reason, node=pod["spec"].get("nodeName")),
        started=time_of(last["startedAt"]) if last.get("startedAt") else None,
        ended=time_of(last["finishedAt"]) if last.get("finishedAt") else None,
    )


def _container(pod: Thing) -> Thing:
    statuses: Sequence[Thing] = (pod.get("status") or {}).get("containerStatuses") or ({},)
    return statuses[0]


def _leaving(pod: Thing) -> Reason:
    why = reasons.disruption_of(pod)
    return Reason(code="end.stopping", message=f"it is being ended: {why.message if why else 'its pod was deleted'}")


def _unreachable(pod: Thing) -> Reason | None:
    ready = condition(pod, "Ready", "False") or condition(pod, "Ready", "Unknown")
    if pod["status"].get("reason") == "NodeLost" or (ready and ready.get("reason") in ("NodeNotReady", "NodeStatusUnknown")):
        node = pod["spec"].get("nodeName")
        return Reason(
            code="run.node_unreachable", message=f"its node {node} does not answer; it may come back", facts={"node": node}
        )
    return None


def _overall(attempt: Attempt, stands: list[_Stand]) -> tuple[Phase, Reason | None]:
    statuses: list[ReplicaStatus] = [stand.status for stand in stands]
    alive = any(not has_ended(pod) for pod in attempt.pods)
    are_final = attempt.is_settled or all(status.phase.is_final for status in statuses)
    phase = _living_phase(attempt.spec, statuses)
    if wish := attempt.wish:
        if not alive and (attempt.is_suspended or attempt.finished or are_final):
            return wish.final_phase, wish
        return phase, reasons.stopping(wish)
    failed = _first_failure(stands)
    if not alive and (attempt.finished or are_final):
        return _final(attempt, statuses, failed)
    if failed:
        why = failed.reason.message if failed.reason else ""
        text = f"replica {failed.rank} has failed, and the others are being ended: {why}"
        return phase, Reason(code="end.stopping", message=text)
    return phase, _chosen_reason(phase, statuses)


def _first_failure(stands: list[_Stand]) -> ReplicaStatus | None:
    failed = [stand for stand in stands if stand.status.phase is Phase.FAILED]
    first = min(failed, key=lambda stand: (stand.ended is None, stand.ended), default=None)
    return first.status if first else None


def _living_phase(spec: WorkloadSpec, statuses: list[ReplicaStatus]) -> Phase:
    """Return the phase of a Workload that is not over.

    Those that start together are QUEUED until the last replica has its device, and RUNNING when all run. Of those that start as
    they fit, the first decides.
    """
    phases = {Phase.RUNNING if status.phase.is_final else status.phase for status in statuses}
    order = (Phase.QUEUED, Phase.STARTING) if spec.start is Start.TOGETHER else (Phase.RUNNING, Phase.STARTING, Phase.QUEUED)
    return next((phase for phase in order if phase in phases), Phase.RUNNING)


def _chosen_reason(phase: Phase, statuses: list[ReplicaStatus]) -> Reason | None:
    """Return the reason to show for all: one that does not heal, else that of the replica which is furthest behind."""
    known = [status for status in statuses if status.reason and not status.phase.is_final]
    lasting = next((status.reason for status in known if status.reason and status.reason.facts.get("heals") is False), None)
    if lasting or phase is Phase.RUNNING:
        return lasting or next((status.reason for status in known if status.phase is Phase.RUNNING), None)
    behind = sorted(known, key=lambda status: status.phase is not Phase.QUEUED)
    return behind[0].reason if behind else None


def _final(attempt: Attempt, statuses: list[ReplicaStatus], failed: ReplicaStatus | None) -> tuple[Phase, Reason | None]:
    if failed:
        return Phase.FAILED, failed.reason
    if all(status.phase is Phase.SUCCEEDED for status in statuses):
        return Phase.SUCCEEDED, statuses[0].reason
    if attempt.settled_end and attempt.settled_end[0]:
        reason = attempt.settled_end[0]
        return reason.final_phase, reason
    over = attempt.finished or {}
    if over.get("type") == "Complete":
        return Phase.SUCCEEDED, Reason(code="end.completed", message="it ended well; its pod is gone")
    words = over.get("message", "")
    return Phase.FAILED, Reason(code="end.lost", message=f"its pod is gone, and with it how it ended: {words}".rstrip(": "))


def _ended(attempt: Attempt, stands: list[_Stand]) -> datetime:
    if attempt.settled_end:
        return attempt.settled_end[1]
    times = [stand.ended for stand in stands if stand.ended]
    over = attempt.finished or condition(attempt.job, "Suspended")
    if over and not times:
        times.append(time_of(over["lastTransitionTime"]))
    return max(times, default=attempt.created)


def _shown(status: ReplicaStatus, attempt: Attempt, phase: Phase, reason: Reason | None) -> ReplicaStatus:
    """Return a replica of a Workload that is over: what was ended, or left no word of its own, shares the Workload's end."""
    if phase.is_final and (attempt.wish or not status.phase.is_final) and status.phase is not Phase.SUCCEEDED:
        return status.model_copy(update={"phase": phase, "reason": reason})
    return status
