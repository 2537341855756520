"""The ConfigMap that holds what stands beside every program: `jupyter_gpu.replica` as a zip."""

from __future__ import annotations

import base64
from typing import Any

from jupyter_gpu.backends.kubernetes.manifests.labels import MANAGED_BY, MANAGER
from jupyter_gpu.backends.sending import replica_zip


def replica_configmap() -> dict[str, Any]:
    """Return the ConfigMap of this version's replica: named by the zip's hash, immutable, shared by all in the namespace."""
    name, content = replica_zip(compiled=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": configmap_name(name), "labels": {MANAGED_BY: MANAGER}},
        "immutable": True,
        "binaryData": {name: base64.b64encode(content).decode()},
    }


def configmap_name(zip_name: str) -> str:
    """Return the name of the ConfigMap for a zip, ``replica-<hash>.zip``."""
    return f"jupyter-gpu-{zip_name.removeprefix('replica-').removesuffix('.zip')}"
