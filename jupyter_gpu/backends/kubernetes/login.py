"""Who we are at the cluster: a kubeconfig, or a pod's service account, read by the official client.

This module loads `kubernetes`, so it is imported on first use and in a thread.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError

from jupyter_gpu.backends.kubernetes import translation
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import KubernetesSettings

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Login:
    """One reading of the configuration."""

    api: Any
    host: str
    namespace: str
    in_cluster: bool
    at: float


def log_in(settings: KubernetesSettings) -> Login:
    """Read the configuration; blocks, and may run a login program, so it belongs into a thread."""
    configuration = Configuration()
    path = settings.kubeconfig or _kubeconfig()
    if path is not None and not any(Path(part).expanduser().exists() for part in str(path).split(os.pathsep)):
        raise InvalidRequestError(
            f"there is no kubeconfig {path}: correct KUBECONFIG, or kubeconfig in the configuration of this place"
        )
    try:
        if path is None:
            load_incluster_config(configuration)
            namespace = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
        else:
            loader = asyncio.run(
                load_kube_config(str(path), context=settings.context, client_configuration=configuration, persist_config=False)
            )
            namespace = loader.current_context["context"].get("namespace") or "default"
        configuration.connection_pool_maxsize = 0  # watches, logs and ports keep connections: no limit
        return Login(ApiClient(configuration), configuration.host, namespace, path is None, time.monotonic())
    except (ConfigException, YAMLError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise translation.bad_configuration(error, str(path or "of this pod's service account")) from error


def _kubeconfig() -> str | None:
    """Return the kubeconfig (several joined by ``:``, as kubectl reads them); None for a pod's service account."""
    if paths := os.environ.get("KUBECONFIG"):
        return paths
    if (home := Path.home() / ".kube" / "config").exists():
        return str(home)
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    raise InvalidRequestError("no cluster is configured: set KUBECONFIG, or kubeconfig in the configuration of this place")
