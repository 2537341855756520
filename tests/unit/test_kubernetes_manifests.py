"""The documents that are written to a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.manifests.configmap import replica_configmap
from jupyter_gpu.backends.kubernetes.manifests.job import Customs, attempt_job
from jupyter_gpu.backends.kubernetes.manifests.lease import is_good, lease
from jupyter_gpu.backends.kubernetes.manifests.secret import attempt_secret, values_of, without_values
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import Resources, WorkloadSpec
from tests.builders import a_kernel, a_workload


def in_image(spec: WorkloadSpec, **environment: Any) -> WorkloadSpec:
    return spec.model_copy(
        update={"owner": "ana", "environment": spec.environment.model_copy(update={"image": "img:1"} | environment)}
    )


def job_of(spec: WorkloadSpec, **customs: Any) -> dict[str, Any]:
    return attempt_job(spec, 2, sequence=7, holder=None, customs=Customs(**customs))


def pod_of(spec: WorkloadSpec, **customs: Any) -> dict[str, Any]:
    pod: dict[str, Any] = job_of(spec, **customs)["spec"]["template"]["spec"]
    return pod


def test_the_job_holds_its_whole_story() -> None:
    spec = in_image(a_workload("Ana's w", labels={"a": "b"}))
    metadata = job_of(spec)["metadata"]
    assert metadata["name"] == "ana-s-w-" + metadata["name"].split("-")[-2] + "-2"
    assert metadata["labels"] == {
        "app.kubernetes.io/managed-by": "jupyter-gpu",
        "jupyter-gpu/owner": "ana",
        "jupyter-gpu/workload": metadata["name"].removesuffix("-2"),
        "jupyter-gpu/kind": "batch",
        "jupyter-gpu/attempt": "2",
    }
    assert WorkloadSpec.model_validate_json(metadata["annotations"][labels.SPEC]) == spec
    assert metadata["annotations"][labels.ID] == "Ana's w"
    assert metadata["annotations"][labels.PROTOCOL_NUMBER] == "1"
    assert metadata["annotations"][labels.SEQUENCE] == "7"


def test_a_pod_may_nothing_but_compute() -> None:
    pod = pod_of(in_image(a_workload()))
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["restartPolicy"] == "Never"
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_amounts_are_quoted_and_requests_are_limits_but_for_idle_cores() -> None:
    asked = Resources(gpus=2, cpus=0.25, memory_bytes="1GiB")
    (container,) = pod_of(in_image(a_workload(resources=asked)))["containers"]
    assert container["resources"] == {
        "requests": {"memory": "1073741824", "nvidia.com/gpu": "2", "cpu": "250m"},
        "limits": {"memory": "1073741824", "nvidia.com/gpu": "2"},
    }
    (container,) = pod_of(in_image(a_workload(resources=asked)), limits_cpu=True)["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"]


def test_what_a_namespace_demands_is_obeyed() -> None:
    pod = pod_of(in_image(a_workload()), run_as_non_root=True, image_pull_policy="Never")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["imagePullPolicy"] == "Never"


def test_shared_memory_is_half_of_memory_or_what_is_asked() -> None:
    def shm_of(**asked: Any) -> Any:
        pod = pod_of(in_image(a_workload(resources=Resources(**asked))))
        return next(volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm")

    assert shm_of(memory_bytes="1GiB") == {"medium": "Memory", "sizeLimit": str(2**29)}
    assert shm_of(memory_bytes="1GiB", shm_bytes="1MiB")["sizeLimit"] == str(2**20)


def test_a_device_with_a_taint_of_its_own_is_tolerated() -> None:
    pod = pod_of(in_image(a_workload(gpus=1)))
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert pod_of(in_image(a_workload()))["tolerations"] == []


def nodes_of(spec: WorkloadSpec, *products: str) -> Any:
    job = attempt_job(spec, 1, sequence=7, holder=None, customs=Customs(), products=products)
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return term["matchExpressions"]


def test_a_product_keeps_a_pod_to_the_nodes_that_have_it() -> None:
    spec = in_image(a_workload(resources=Resources(gpus=1, product="A100")))
    label = {"key": "nvidia.com/gpu.product", "operator": "In"}
    assert nodes_of(spec, "NVIDIA-A100-80GB", "NVIDIA-A100-40GB") == [
        {**label, "values": ["NVIDIA-A100-40GB", "NVIDIA-A100-80GB"]}
    ]
    unknown = in_image(a_workload(resources=Resources(gpus=1, product="NVIDIA RTX A6000")))
    assert nodes_of(unknown) == [{**label, "values": ["NVIDIA-RTX-A6000"]}]


def test_a_pod_that_asks_for_no_product_may_go_to_any_node() -> None:
    assert "affinity" not in pod_of(in_image(a_workload(gpus=1)))
    assert "affinity" not in pod_of(in_image(a_workload(resources=Resources(gpus=0, product="A100"))))


@pytest.mark.parametrize("accelerator", ["hygon.com/dcu", "example.org/thing"])
def test_a_product_that_no_label_tells_is_refused(accelerator: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"no node label tells the product of {accelerator}: leave product out"):
        pod_of(in_image(a_workload(resources=Resources(accelerator=accelerator, gpus=1, product="K100"))))


def specification_of(spec: WorkloadSpec) -> str:
    variables = pod_of(spec)["containers"][0]["env"]
    text: str = next(variable["value"] for variable in variables if variable["name"] == "JUPYTER_GPU_REPLICA")
    return text


def test_the_runner_gets_its_specification_and_the_kubelet_replaces_nothing_in_it() -> None:
    text = specification_of(in_image(a_workload(command=("sh", "-c", "echo $(date) $$ $HOME"))))
    specification = json.loads(text.replace("$$", "$"))
    assert specification["command"] == ["sh", "-c", "echo $(date) $$ $HOME"]
    assert text.count("$(") == text.count("$$(")
    assert (specification["rank"], specification["attempt"]) == (0, 2)
    assert "secrets" not in specification


def test_several_replicas_are_an_indexed_job_and_know_their_rank() -> None:
    spec = in_image(a_workload(replicas=3, command=("echo", '"rank": 0')))
    job = job_of(spec)["spec"]
    assert (job["completionMode"], job["parallelism"], job["completions"], job["backoffLimit"]) == ("Indexed", 3, 3, 0)
    text = specification_of(spec)
    assert json.loads(text.replace("$(JOB_COMPLETION_INDEX)", "2").replace("$$", "$"))["rank"] == 2
    assert text.count("$(JOB_COMPLETION_INDEX)") == 1


def test_secrets_are_mounted_where_a_workload_has_some() -> None:
    pod = pod_of(in_image(a_kernel()))
    assert {"secretName": "k-1-2", "defaultMode": 0o444} in [volume.get("secret") for volume in pod["volumes"]]
    assert json.loads(specification_of(in_image(a_kernel())))["secrets"] == "/run/jupyter-gpu/secrets"
    assert all("secret" not in volume for volume in pod_of(in_image(a_workload()))["volumes"])


def test_an_interpreter_of_the_image_can_be_named() -> None:
    (container,) = pod_of(in_image(a_workload(), interpreter="/opt/conda/bin/python"))["containers"]
    assert container["command"][:3] == ["/opt/conda/bin/python", "-S", "-E"]
    assert container["command"][3].startswith("/opt/jupyter-gpu/replica-")


def test_without_an_image_there_is_no_pod() -> None:
    with pytest.raises(InvalidRequestError, match=r"environment\.image"):
        pod_of(a_workload())


def test_the_same_content_has_the_same_hash_whoever_asks() -> None:
    assert labels.content_of(a_workload()) == labels.content_of(a_workload(owner="ana"))
    assert labels.content_of(a_workload()) != labels.content_of(a_workload(priority=1))


def test_no_secret_is_shown() -> None:
    secret = attempt_secret(in_image(a_kernel()), 1, {"key": "precious"})
    assert values_of(secret) == {"key": "precious"}
    assert without_values(secret)["data"] == {"key": ""}
    assert secret["metadata"]["name"] == "k-1-1"


def test_the_configmap_is_named_by_what_it_holds_and_never_changes() -> None:
    document = replica_configmap()
    (name,) = document["binaryData"]
    assert document["metadata"]["name"] == "jupyter-gpu-" + name.removeprefix("replica-").removesuffix(".zip")
    assert document["immutable"] is True


def test_a_lease_is_good_for_its_time_and_a_little_more() -> None:
    from datetime import UTC, datetime, timedelta

    now = datetime(2030, 1, 1, tzinfo=UTC)
    held = lease("l", "client", "ana", "ana on host", 15, now)
    assert is_good(held, now + timedelta(seconds=16))
    assert not is_good(held, now + timedelta(seconds=18))
