"""The Secret of an attempt: the only object that holds secret values."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from jupyter_gpu.backends.kubernetes.manifests.labels import CONTENT, ID, OWNER, attempt_name, content_of, labels_of
from jupyter_gpu.schema import WorkloadSpec


def attempt_secret(spec: WorkloadSpec, attempt: int, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the Secret of an attempt; its ownerReference follows when its Job has a uid (see `owned_by`)."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": attempt_name(spec.id, attempt),
            "labels": labels_of(spec, attempt),
            "annotations": {ID: spec.id, OWNER: spec.owner, CONTENT: content_of(spec)},
        },
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in values.items()},
    }


def without_values(secret: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Secret as it may be shown: the names of its values, and none of them."""
    return {**secret, "data": dict.fromkeys(secret["data"], "")}


def values_of(secret: Mapping[str, Any]) -> dict[str, str]:
    """Return what a Secret holds."""
    return {name: base64.b64decode(value).decode() for name, value in (secret.get("data") or {}).items()}


def owned_by(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change that makes a Job the owner of a Secret, so that it goes with the Job."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "blockOwnerDeletion": False,
    }
    return {"metadata": {"ownerReferences": [owner]}}
