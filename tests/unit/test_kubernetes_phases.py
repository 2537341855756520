"""What a Job and its pods mean: every way of waiting, starting and ending, in our words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpu.backends.kubernetes.attempts import Attempt
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.manifests.job import Customs, attempt_job
from jupyter_gpu.backends.kubernetes.phases import Sizes, status_of
from jupyter_gpu.schema import Phase, Reason, WorkloadStatus
from tests.builders import a_workload

NOW = "2030-01-01T12:00:00Z"


def job(
    *, wish: Reason | None = None, conditions: tuple[str, ...] = (), annotations: Any = None, **changes: Any
) -> dict[str, Any]:
    spec = a_workload(**changes)
    spec = spec.model_copy(update={"owner": "ana", "environment": spec.environment.model_copy(update={"image": "img:1"})})
    document = attempt_job(spec, 1, sequence=7, holder=None, customs=Customs())
    document["metadata"] |= {"uid": "job-uid", "resourceVersion": "1", "creationTimestamp": NOW}
    document["metadata"]["annotations"] |= annotations or {}
    if wish:
        document["metadata"]["annotations"][labels.CANCEL] = wish.model_dump_json()
        document["spec"]["suspend"] = "Suspended" in conditions
    document["status"] = {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": NOW} for kind in conditions]}
    return document


def pod(
    state: dict[str, Any] | None = None, *, phase: str = "Pending", node: str | None = "n1", rank: int = 0, **changes: Any
) -> dict[str, Any]:
    metadata = {
        "name": f"w-1-1-{rank}",
        "uid": f"pod-{rank}",
        "resourceVersion": "1",
        "creationTimestamp": NOW,
        "labels": {labels.WORKLOAD: "w-1", labels.ATTEMPT: "1"},
        "annotations": {labels.RANK: str(rank)},
    }
    status = {
        "phase": phase,
        "conditions": [{"type": "PodScheduled", "status": "True" if node else "False", "lastTransitionTime": NOW}],
    }
    if state is not None:
        status["containerStatuses"] = [{"state": state}]
    metadata |= changes.pop("metadata", {})
    status["conditions"] += changes.pop("conditions", [])
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [{"image": "img:1"}]}, "status": status | changes}


def running(rank: int = 0, **changes: Any) -> dict[str, Any]:
    return pod({"running": {"startedAt": NOW}}, phase="Running", rank=rank, **{"podIP": "10.0.0.1"} | changes)


def terminated(code: int, message: str = "", reason: str = "Error", rank: int = 0, **changes: Any) -> dict[str, Any]:
    last = {"exitCode": code, "message": message, "reason": reason, "startedAt": NOW, "finishedAt": "2030-01-01T12:01:00Z"}
    return pod({"terminated": last}, phase="Succeeded" if code == 0 else "Failed", rank=rank, **changes)


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod({"waiting": {"reason": reason, "message": message}})


def stand(*pods: dict[str, Any], trouble: Any = None, sizes: Sizes | None = None, **changes: Any) -> WorkloadStatus:
    return status_of(Attempt(job(**changes), pods, trouble or {}), sizes)


def code_of(status: WorkloadStatus) -> str | None:
    return status.reason.code if status.reason else None


CANCELLED = Reason(code="end.cancelled", message="it was cancelled")
REPORT = json.dumps(
    {"report": "end", "code": "end.exit_code", "message": "it ended with exit code 3", "exit_code": 3, "facts": {"a": 1}}
)
TERMINATED = json.dumps({"report": "end", "code": "end.terminated", "message": "it was told to end (TERM)", "signal": "SIGTERM"})


def test_without_a_pod_it_is_queued() -> None:
    status = stand()
    assert (status.phase, code_of(status), status.sequence) == (Phase.QUEUED, "queue.submitted", 7)


@pytest.mark.parametrize(
    ("message", "code", "heals"),
    [
        (
            'Error creating: pods "w" is forbidden: exceeded quota: gpu, requested: requests.nvidia.com/gpu=1, '
            "used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4",
            "queue.quota",
            True,
        ),
        (
            "exceeded quota: gpu, requested: memory=8Gi,pods=1, used: memory=0,pods=9, limited: memory=4Gi,pods=10",
            "queue.quota",
            False,
        ),
        ('Error creating: pods "w" is forbidden: violates PodSecurity "restricted:latest"', "queue.refused", False),
        ('Error creating: Internal error occurred: failed calling webhook "w.example.com"', "queue.refused", True),
        (
            'Error creating: pods "w" is forbidden: error looking up service account: serviceaccount "default" not found',
            "queue.refused",
            True,
        ),
    ],
)
def test_what_the_job_controller_complains_of_is_why_it_waits(message: str, code: str, heals: bool) -> None:
    status = stand(trouble={"job-uid": {"FailedCreate": message}})
    assert (status.phase, code_of(status)) == (Phase.QUEUED, code)
    assert status.reason
    assert status.reason.facts.get("heals", True) is heals


def test_a_pod_without_a_node_waits_in_the_schedulers_words() -> None:
    waits = pod(node=None)
    waits["status"]["conditions"][0]["message"] = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes"
    status = stand(waits, gpus=1)
    assert (status.phase, code_of(status)) == (Phase.QUEUED, "queue.busy")
    assert status.reason
    assert status.reason.message == "waits for 1 nvidia.com/gpu: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_a_pod_that_no_node_could_hold_says_so() -> None:
    status = stand(pod(node=None), gpus=9, sizes=Sizes({"nvidia.com/gpu": 8, "cpu": 64, "memory": 2**40}))
    assert code_of(status) == "queue.unschedulable"
    assert status.reason
    assert "asks for 9 nvidia.com/gpu, and the largest node has 8" in status.reason.message


NO_PYTHON = 'failed to create containerd task: runc: exec: "python3": executable file not found in $PATH: unknown'


@pytest.mark.parametrize(
    ("cause", "message", "code", "heals"),
    [
        ("ContainerCreating", "", "start.pulling", True),
        ("ErrImagePull", "dial tcp: i/o timeout", "start.image_pull", True),
        ("ErrImagePull", 'failed to resolve reference "img:1": not found', "start.image_pull", False),
        ("ErrImagePull", "pull access denied", "start.image_pull", False),
        ("ImagePullBackOff", 'Back-off pulling image "img:1"', "start.image_pull", False),
        ("InvalidImageName", "couldn't parse image name", "start.image_pull", False),
        ("ErrImageNeverPull", "", "start.image_pull", False),
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root", "start.config", False),
        ("CreateContainerError", "no command specified", "start.command", False),
        ("RunContainerError", NO_PYTHON, "start.no_python", False),
    ],
)
def test_why_a_container_does_not_start(cause: str, message: str, code: str, heals: bool) -> None:
    status = stand(waiting(cause, message))
    assert (status.phase, code_of(status)) == (Phase.STARTING, code)
    assert status.reason
    assert status.reason.facts.get("heals", True) is heals


def test_a_mount_that_fails_is_known_from_a_warning_only() -> None:
    trouble = {"pod-0": {"FailedMount": 'MountVolume.SetUp failed for volume "secrets": secret "k-1-1" not found'}}
    status = stand(waiting("ContainerCreating"), trouble=trouble)
    assert code_of(status) == "start.mount"


def test_it_is_ready_when_it_runs_and_has_an_address() -> None:
    assert not stand(running(podIP="")).ready
    status = stand(running())
    assert (status.phase, status.ready, status.reason) == (Phase.RUNNING, True, None)
    assert status.started


def test_all_replicas_of_a_gang_must_run() -> None:
    status = stand(running(), pod(node=None, rank=1), replicas=2)
    assert (status.phase, code_of(status), status.ready) == (Phase.QUEUED, "queue.busy", False)
    assert stand(running(), waiting("ContainerCreating"), replicas=2).phase is Phase.QUEUED  # the second is not made yet
    assert stand(running(), running(1), replicas=2).ready


def test_of_those_that_start_as_they_fit_one_is_enough() -> None:
    status = stand(running(), pod(node=None, rank=1), replicas=2, start="as_they_fit")
    assert (status.phase, status.ready) == (Phase.RUNNING, False)


@pytest.mark.parametrize(
    ("ended", "phase", "code"),
    [
        (terminated(0), Phase.SUCCEEDED, "end.completed"),
        (terminated(3), Phase.FAILED, "end.exit_code"),
        (terminated(3, REPORT), Phase.FAILED, "end.exit_code"),
        (terminated(137), Phase.FAILED, "end.signal"),
        (terminated(137, reason="OOMKilled"), Phase.FAILED, "end.out_of_memory"),
        (terminated(128, NO_PYTHON, "StartError"), Phase.FAILED, "start.no_python"),
        (terminated(128, 'exec: "/x/y": permission denied', "StartError"), Phase.FAILED, "start.command"),
        (terminated(137, "{not json", "ContainerStatusUnknown"), Phase.FAILED, "end.lost"),
        (pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory."), Phase.FAILED, "end.evicted"),
        (terminated(143, TERMINATED), Phase.FAILED, "end.terminated"),
        (terminated(143, TERMINATED, metadata={"deletionTimestamp": NOW}), Phase.FAILED, "end.lost"),
    ],
)
def test_how_a_pod_ended(ended: dict[str, Any], phase: Phase, code: str) -> None:
    status = stand(ended)
    assert (status.phase, code_of(status)) == (phase, code)


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("PreemptionByScheduler", "end.preempted"),
        ("EvictionByEvictionAPI", "end.evicted"),
        ("DeletionByTaintManager", "end.node_lost"),
        ("DeletionByPodGC", "end.node_lost"),
        ("TerminationByKubelet", "end.evicted"),
        ("SomethingNew", "end.lost"),
    ],
)
def test_who_ended_a_pod_from_outside(cause: str, code: str) -> None:
    disrupted = [
        {"type": "DisruptionTarget", "status": "True", "reason": cause, "message": "for a reason", "lastTransitionTime": NOW}
    ]
    status = stand(terminated(143, TERMINATED, conditions=disrupted))
    assert code_of(status) == code
    still_there = stand(running(conditions=disrupted, metadata={"deletionTimestamp": NOW}))
    assert (still_there.phase, code_of(still_there), still_there.ready) == (Phase.RUNNING, "end.stopping", False)


def test_a_node_that_does_not_answer_is_told_while_it_may_come_back() -> None:
    lost = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": NOW}]
    status = stand(running(conditions=lost))
    assert (status.phase, code_of(status)) == (Phase.RUNNING, "run.node_unreachable")


@pytest.mark.parametrize(
    ("pods", "conditions", "phase", "code"),
    [
        ((), (), Phase.QUEUED, "end.stopping"),  # the controller may still make a pod
        ((), ("Suspended",), Phase.CANCELLED, "end.cancelled"),
        ((pod(node=None),), (), Phase.QUEUED, "end.stopping"),
        ((running(),), (), Phase.RUNNING, "end.stopping"),
        ((running(),), ("Suspended",), Phase.RUNNING, "end.stopping"),
        ((terminated(143, TERMINATED),), (), Phase.CANCELLED, "end.cancelled"),
        ((terminated(0),), ("Complete",), Phase.CANCELLED, "end.cancelled"),
    ],
)
def test_what_somebody_wants_ended(pods: Any, conditions: tuple[str, ...], phase: Phase, code: str) -> None:
    status = stand(*pods, wish=CANCELLED, conditions=conditions)
    assert (status.phase, code_of(status)) == (phase, code)


def test_a_job_that_is_over_without_a_pod_is_lost_unless_its_end_was_written_down() -> None:
    assert code_of(stand(conditions=("Failed",))) == "end.lost"
    end = {"reason": {"code": "end.exit_code", "message": "m", "facts": {}}, "time": NOW}
    status = stand(conditions=("Failed",), annotations={labels.END: json.dumps(end)})
    assert (status.phase, code_of(status)) == (Phase.FAILED, "end.exit_code")
    assert status.ended
    assert stand(conditions=("Complete",)).phase is Phase.SUCCEEDED


def test_the_first_replica_that_failed_is_the_reason() -> None:
    late = terminated(143, TERMINATED, rank=1)
    late["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = "2030-01-01T12:02:00Z"
    status = stand(late, terminated(3, REPORT, rank=0), conditions=("Failed",), replicas=2)
    assert code_of(status) == "end.exit_code"
    assert status.reason == status.replicas[0].reason


def test_while_others_are_being_ended_a_failure_is_no_end() -> None:
    status = stand(terminated(3, REPORT), running(1), replicas=2)
    assert (status.phase, code_of(status)) == (Phase.RUNNING, "end.stopping")


def test_an_object_of_a_newer_version_is_passed_over() -> None:
    document = job()
    document["metadata"]["annotations"][labels.SPEC] = '{"id": "w-1", "a_field_of_the_future": 1}'
    assert not Attempt(document).is_readable
