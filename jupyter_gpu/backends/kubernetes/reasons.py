"""Why a replica waits, does not start, or has ended: the cluster's words made ours. Pure functions of what the API server shows.

The fact ``heals`` is False where waiting can't help; the Keeper then ends the Workload.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from jupyter_gpu.backends.kubernetes.attempts import Attempt, Thing, condition
from jupyter_gpu.backends.kubernetes.quantities import excess_of
from jupyter_gpu.schema import Reason, WorkloadSpec, format_bytes

STAYS = {"heals": False}

# What a registry says when it will say the same next time.
_LASTING_PULL = re.compile(
    r"not found|manifest unknown|denied|unauthorized|authorization failed|forbidden|no such host|connection refused"
    r"|invalid reference|does not exist|no match for platform",
    re.IGNORECASE,
)
_NO_PYTHON = re.compile(r'exec: "([^"]*python[^"]*)".*(not found|no such file)', re.IGNORECASE | re.DOTALL)
_PULL_FAILURES = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_IMAGE_FAULTS = frozenset({"InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "SignatureValidationFailed"})
_MOUNT_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")

# DisruptionTarget reasons of k8s.io/api/core/v1 and what they mean to whoever lost a pod.
_DISRUPTIONS = {
    "PreemptionByScheduler": ("end.preempted", "it gave way to a pod of higher priority"),
    "EvictionByEvictionAPI": ("end.evicted", "its pod was evicted (its node is being emptied)"),
    "DeletionByTaintManager": ("end.node_lost", "its node was tainted or went away"),
    "DeletionByPodGC": ("end.node_lost", "its node is gone"),
    "TerminationByKubelet": ("end.evicted", "its node ended it"),
}


def without_pod(attempt: Attempt) -> Reason:
    """Return why there is no pod yet: the Job controller's last complaint, if it has one."""
    message = attempt.trouble.get(attempt.uid, {}).get("FailedCreate", "")
    if not message:
        return Reason(code="queue.submitted", message=f"waits for {wanted(attempt.spec)}: the cluster has made no pod of it yet")
    if excess := excess_of(message):
        text = (
            f"waits for the quota {excess.quota}: {excess.used:g} of {excess.limit:g} {excess.resource} are used, "
            f"and it asks for {excess.asked:g}"
        )
        facts = {"quota": excess.quota, "resource": excess.resource, "asked": excess.asked, "used": excess.used}
        return Reason(
            code="queue.quota", message=text, facts=facts | {"limit": excess.limit} | (STAYS if excess.is_for_ever else {})
        )
    # a namespace that was just made has no service account for a moment
    lasting = ("is forbidden" in message or "is invalid" in message) and "serviceaccount" not in message
    return Reason(
        code="queue.refused", message=f"the cluster refuses its pod: {_tidy(message)}", facts=dict(STAYS) if lasting else {}
    )


def unscheduled(pod: Thing, spec: WorkloadSpec, too_large: str | None) -> Reason:
    """Return why a pod has no node, in the scheduler's words.

    Args:
        pod: the pod.
        spec: what was asked for.
        too_large: what no node could ever hold, if that is known.
    """
    scheduled = condition(pod, "PodScheduled", "False")
    reason = not_scheduled(spec, (scheduled or {}).get("message", ""))
    if too_large:
        return Reason(code="queue.unschedulable", message=f"no node could ever hold it: {too_large}", facts=reason.facts)
    return reason


def not_scheduled(spec: WorkloadSpec, message: str) -> Reason:
    """Return why a pod has no node, by what the scheduler said of it; nothing where it has not said anything yet."""
    words = _tidy(message).split(" preemption:")[0].strip()
    facts = {"resource": spec.resources.accelerator.resource, "asked": spec.resources.gpus, "scheduler": words}
    return Reason(code="queue.busy", message=f"waits for {wanted(spec)}" + (f": {words}" if words else ""), facts=facts)


def starting(pod: Thing, container: Thing, trouble: Mapping[str, str]) -> Reason:
    """Return why a pod that has a node does not run yet."""
    node, image = pod["spec"].get("nodeName", ""), pod["spec"]["containers"][0]["image"]
    waiting = (container.get("state") or {}).get("waiting") or {}
    cause, words = waiting.get("reason", ""), _tidy(waiting.get("message", ""))
    if cause in _PULL_FAILURES or cause in _IMAGE_FAULTS:
        return _unpulled(image, cause, words, trouble)
    if cause in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CreatePodSandboxError"):
        return refused_container(image, cause, words)
    if mount := next((trouble[event] for event in _MOUNT_EVENTS if event in trouble), None):
        return Reason(
            code="start.mount", message=f"its pod on {node} can't mount something: {_tidy(mount)}", facts={"node": node}
        )
    if sandbox := trouble.get("FailedCreatePodSandBox"):
        return Reason(code="start.sandbox", message=f"{node} can't make its pod: {_tidy(sandbox)}", facts={"node": node})
    text = f"{node} makes its container, and pulls the image first if it is not there"
    return Reason(code="start.pulling", message=text, facts={"node": node, "image": image})


def _unpulled(image: str, cause: str, words: str, trouble: Mapping[str, str]) -> Reason:
    failure = trouble.get("Failed", "")
    words = words if words and not words.startswith("Back-off pulling") else _tidy(failure) or words
    has_failed_twice = cause == "ImagePullBackOff"
    lasting = cause in _IMAGE_FAULTS or has_failed_twice or bool(_LASTING_PULL.search(words))
    text = f"the image {image} can't be pulled ({cause}): {words or 'the node gives no cause'}"
    return Reason(code="start.image_pull", message=text, facts={"image": image, "cause": cause} | (STAYS if lasting else {}))


def refused_container(image: str, cause: str, words: str) -> Reason:
    """Return why a node could not make or start a container."""
    facts = {"image": image, "cause": cause, **STAYS}
    if match := _NO_PYTHON.search(words):
        text = f"this image has no {match[1]} that can be started: {image}; choose one with Python 3.10 or newer"
        return Reason(code="start.no_python", message=text, facts=facts)
    if cause == "CreateContainerConfigError":
        return Reason(code="start.config", message=f"its container can't be set up: {words}", facts=facts)
    return Reason(code="start.command", message=f"its container can't be started: {words}", facts=facts)


def stopping(wish: Reason) -> Reason:
    """Return how it stands with what must end, and why it must."""
    facts = {**wish.facts, "because": wish.code}
    return Reason(code="end.stopping", message=f"it is being ended: {wish.message}", facts=facts)


def disruption_of(pod: Thing) -> Reason | None:
    """Return who ended a pod from outside, as far as the cluster tells."""
    status = pod.get("status") or {}
    target = condition(pod, "DisruptionTarget")
    facts = {"node": pod["spec"].get("nodeName")}
    words = _tidy(status.get("message") or "")
    if status.get("reason") in ("Evicted", "Terminated", "NodeShutdown"):
        return Reason(code="end.evicted", message=f"its node ended it: {words or status['reason']}", facts=facts)
    if target:
        code, text = _DISRUPTIONS.get(target.get("reason", ""), ("end.lost", "its pod was ended from outside"))
        words = words or _tidy(target.get("message", ""))
        return Reason(code=code, message=f"{text}: {words}" if words else text, facts=facts)
    if status.get("reason") == "NodeLost":
        return Reason(code="end.node_lost", message=f"its node is gone: {words}", facts=facts)
    if pod["metadata"].get("deletionTimestamp"):
        return Reason(code="end.lost", message="its pod was deleted, and not by jupyter-gpu", facts=facts)
    return None


def ended(pod: Thing, container: Thing, spec: WorkloadSpec) -> Reason:
    """Return how a replica ended: its own report, unless somebody else ended it and it only says that."""
    last = (container.get("state") or {}).get("terminated") or {}
    report = _report(last.get("message", ""))
    outside = disruption_of(pod)
    if outside and (report is None or report.code == "end.terminated"):
        return outside
    if report and report.code == "end.completed":
        return report
    if last.get("reason") == "OOMKilled" or (report and report.code == "end.out_of_memory"):
        limit = spec.resources.memory_bytes
        text = f"it ran out of memory: its limit is {format_bytes(limit)}; ask for more"
        return Reason(code="end.out_of_memory", message=text, facts={**(report.facts if report else {}), "limit_bytes": limit})
    return report or _unreported(pod, last)


def _unreported(pod: Thing, last: Mapping[str, Any]) -> Reason:
    image, code, words = pod["spec"]["containers"][0]["image"], last.get("exitCode"), _tidy(last.get("message", ""))
    if last.get("reason") in ("StartError", "ContainerCannotRun"):
        return refused_container(image, last["reason"], words)
    if code is None or last.get("reason") == "ContainerStatusUnknown":
        said = _tidy((pod.get("status") or {}).get("message") or "")
        return Reason(code="end.lost", message=f"its pod ended without a report{': ' + said if said else ''}")
    if code == 0:
        return Reason(code="end.completed", message="it ended with exit code 0", facts={"exit_code": 0})
    if code > 128 and (code == 137 or last.get("signal")):
        return Reason(code="end.signal", message=f"it was ended by signal {code - 128}", facts={"exit_code": code})
    return Reason(code="end.exit_code", message=f"it ended with exit code {code}", facts={"exit_code": code})


def usage_of(pod: Thing) -> Mapping[str, float]:
    """Return what a replica that has ended measured of its use: seconds of devices and cores, and bytes."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        last = (container.get("state") or {}).get("terminated") or {}
        try:
            usage = json.loads(last.get("message", ""))["facts"]["usage"]
            return {str(name): float(amount) for name, amount in usage.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return {}


def _report(text: str) -> Reason | None:
    """Return the end report that a runner left in the termination message; what it used is told elsewhere."""
    try:
        report = json.loads(text)
        facts = {name: fact for name, fact in (report.get("facts") or {}).items() if name != "usage"}
        facts |= {key: report[key] for key in ("exit_code", "signal") if report.get(key) is not None}
        return Reason(code=report["code"], message=report["message"], facts=facts)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def wanted(spec: WorkloadSpec) -> str:
    """Return in words what each replica waits for."""
    asked = spec.resources
    return f"{asked.gpus} {asked.accelerator.resource}" if asked.gpus else "room on a node"


def _tidy(words: str) -> str:
    return " ".join(words.split())[:1000]
