"""The Job of an attempt: the root of all that runs, and after its end the story that is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_gpu.backends.base import PROTOCOL
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.manifests.configmap import configmap_name
from jupyter_gpu.backends.sending import replica_specification, replica_zip
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import MiB, Start, WorkloadSpec, kind_of

CONTAINER = "replica"
ZIP_FOLDER = "/opt/jupyter-gpu"
SECRETS_FOLDER = "/run/jupyter-gpu/secrets"
RUN_FOLDER = "/run/jupyter-gpu/run"

_RUNNER_GRACE_S = 2  # beyond the program's own grace period: the runner reports the end after it
_RUN_FOLDER_BYTES = 16 * MiB
_SPECIFICATION_BYTES = 100_000  # one environment variable holds 128 KiB at most (MAX_ARG_STRLEN of Linux)
_RANK_PLACE = '"rank": 0'
_RANK_VARIABLE = "JOB_COMPLETION_INDEX"


@dataclass(frozen=True)
class Customs:
    """What a namespace demands of the pods in it."""

    limits_cpu: bool = False
    """A ResourceQuota counts ``limits.cpu``, so each container needs one. Else a program may use cores that are idle."""
    run_as_non_root: bool = False
    """The namespace enforces the Pod Security level ``restricted``."""
    image_pull_policy: str | None = None


def attempt_job(
    spec: WorkloadSpec, attempt: int, *, sequence: int, holder: str | None, customs: Customs, products: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the Job of an attempt.

    Args:
        spec: what is asked for, with its owner.
        attempt: counted from 1.
        sequence: order of arrival.
        holder: name of the Lease of the client that holds it from the start.
        customs: what the namespace demands.
        products: values of the product's node label that will do; where nodes can't be read, the product is taken for the value.

    Raises:
        InvalidRequestError: it has no image, is larger than a pod can be told, or asks for a product that no node label tells.
    """
    annotations = {
        labels.ID: spec.id,
        labels.OWNER: spec.owner,
        labels.PROTOCOL_NUMBER: str(PROTOCOL),
        labels.SPEC: spec.model_dump_json(exclude_defaults=True),
        labels.CONTENT: labels.content_of(spec),
        labels.SEQUENCE: str(sequence),
        **({labels.HOLDER: holder} if holder else {}),
    }
    metadata = {
        "name": labels.attempt_name(spec.id, attempt),
        "labels": labels.labels_of(spec, attempt),
        "annotations": annotations,
    }
    pod = _pod_spec(spec, attempt, customs) | _affinity(spec, products)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": _job_spec(spec, attempt, pod)}


def _job_spec(spec: WorkloadSpec, attempt: int, pod: dict[str, Any]) -> dict[str, Any]:
    many = spec.replicas > 1
    at_once = spec.replicas if spec.start is Start.TOGETHER else min(spec.replicas, spec.max_parallel or spec.replicas)
    return {
        "parallelism": at_once,
        "completions": spec.replicas,
        "completionMode": "Indexed" if many else "NonIndexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "template": {"metadata": {"labels": labels.labels_of(spec, attempt)}, "spec": pod},
    }


def _pod_spec(spec: WorkloadSpec, attempt: int, customs: Customs) -> dict[str, Any]:
    security = {"seccompProfile": {"type": "RuntimeDefault"}, **({"runAsNonRoot": True} if customs.run_as_non_root else {})}
    device = spec.resources.accelerator.resource
    # what the admission plugin ExtendedResourceToleration adds, where a cluster has it
    tolerations = [{"key": device, "operator": "Exists", "effect": "NoSchedule"}] if spec.resources.gpus else []
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(spec.grace_s) + _RUNNER_GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security,
        "tolerations": tolerations,
        "containers": [_container(spec, attempt, customs)],
        "volumes": _volumes(spec, attempt),
    }


def _affinity(spec: WorkloadSpec, products: Sequence[str]) -> dict[str, Any]:
    """Return the part of a pod that keeps it to nodes with the product that is asked for."""
    asked = spec.resources
    if not asked.gpus or asked.product is None:
        return {}
    kind = kind_of(asked.accelerator.resource)
    if kind is None or kind.product_label is None:
        raise InvalidRequestError(f"no node label tells the product of {asked.accelerator}: leave product out")
    values = sorted(products) or [asked.product.replace(" ", "-")]
    term = {"matchExpressions": [{"key": kind.product_label, "operator": "In", "values": values}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}}


def _container(spec: WorkloadSpec, attempt: int, customs: Customs) -> dict[str, Any]:
    if not spec.environment.image:
        raise InvalidRequestError("a Kubernetes place needs environment.image: name a container image that has a Python in it")
    zip_name, _ = replica_zip(compiled=False)
    container = {
        "name": CONTAINER,
        "image": spec.environment.image,
        "command": [spec.environment.interpreter or "python3", "-S", "-E", f"{ZIP_FOLDER}/{zip_name}"],
        "env": _variables(spec, attempt),
        "resources": _resources(spec, customs),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": _mounts(spec),
    }
    return container | ({"imagePullPolicy": customs.image_pull_policy} if customs.image_pull_policy else {})


def _variables(spec: WorkloadSpec, attempt: int) -> list[dict[str, Any]]:
    """Return the runner's environment: its specification, with a rank that the kubelet fills in where there are several.

    Source: "Define Dependent Environment Variables" in the Kubernetes documentation: ``$(NAME)`` is replaced by the value of
    a variable that stands before, and ``$$`` by ``$``.
    """
    secrets = {"secrets": SECRETS_FOLDER} if spec.secrets else {}
    text = json.dumps(replica_specification(spec, attempt=attempt, rank=0, run_folder=RUN_FOLDER, **secrets))
    if len(text) > _SPECIFICATION_BYTES:
        raise InvalidRequestError(
            f"the command and variables of {spec.id!r} take {len(text)} bytes, and a pod can be told {_SPECIFICATION_BYTES}; "
            "put them into a file"
        )
    text = text.replace("$", "$$")
    if spec.replicas == 1:
        return [{"name": "JUPYTER_GPU_REPLICA", "value": text}]
    rank = {"name": _RANK_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{labels.RANK}']"}}}
    text = text.replace(_RANK_PLACE, f'"rank": $({_RANK_VARIABLE})', 1)
    return [rank, {"name": "JUPYTER_GPU_REPLICA", "value": text}]


def _resources(spec: WorkloadSpec, customs: Customs) -> dict[str, Any]:
    asked = spec.resources
    held = {"memory": str(asked.memory_bytes)}
    if asked.gpus:
        held[asked.accelerator.resource] = str(asked.gpus)
    cpu = {"cpu": f"{math.ceil(asked.cpus * 1000)}m"}
    return {"requests": held | cpu, "limits": held | (cpu if customs.limits_cpu else {})}


def _mounts(spec: WorkloadSpec) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "replica", "mountPath": ZIP_FOLDER, "readOnly": True},
        {"name": "run", "mountPath": RUN_FOLDER},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    return mounts + ([{"name": "secrets", "mountPath": SECRETS_FOLDER, "readOnly": True}] if spec.secrets else [])


def _volumes(spec: WorkloadSpec, attempt: int) -> list[dict[str, Any]]:
    zip_name, _ = replica_zip(compiled=False)
    shm_bytes = spec.resources.shm_bytes or spec.resources.memory_bytes // 2
    volumes: list[dict[str, Any]] = [
        {"name": "replica", "configMap": {"name": configmap_name(zip_name), "defaultMode": 0o444}},
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": str(_RUN_FOLDER_BYTES)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shm_bytes)}},
    ]
    secret = {"secretName": labels.attempt_name(spec.id, attempt), "defaultMode": 0o444}  # the image's user is not known here
    return volumes + ([{"name": "secrets", "secret": secret}] if spec.secrets else [])
