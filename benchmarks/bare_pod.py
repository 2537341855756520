"""The plain way to a kernel in a cluster: a bare pod that starts ipykernel itself, and a client by hand."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Any

import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from kubernetes.aio import client as api
from kubernetes.aio import config, watch

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


def _connection(ip: str) -> dict[str, Any]:
    ports = {f"{name}_port": 5551 + number for number, name in enumerate(CHANNELS)}
    return {"transport": "tcp", "ip": ip, "signature_scheme": "hmac-sha256", "kernel_name": "", **ports}


@asynccontextmanager
async def cluster() -> AsyncIterator[api.CoreV1Api]:
    """Log in to the cluster of KUBECONFIG, once, as an application would."""
    await config.load_kube_config()
    async with api.ApiClient() as client:
        yield api.CoreV1Api(client)


@asynccontextmanager
async def bare_pod(core: api.CoreV1Api) -> AsyncIterator[AsyncKernelClient]:
    """Start ipykernel in a bare pod with Curve keys, connect as soon as its address is known, and remove it in the end."""
    name = f"bare-{token_hex(4)}"
    public, secret = (key.decode() for key in zmq.curve_keypair())
    keys = {"key": token_hex(32), "curve_publickey": public, "curve_secretkey": secret}
    info = {**_connection("0.0.0.0"), **keys}
    await core.create_namespaced_secret(
        "default", {"metadata": {"name": name}, "stringData": {"connection.json": json.dumps(info)}}
    )
    copied = "cp /secret/connection.json /tmp/c.json && exec python3 -m ipykernel_launcher -f /tmp/c.json"
    container = {
        "name": "kernel",
        "image": os.environ.get("JUPYTER_GPU_TEST_IMAGE", "localhost/pyk:1"),
        "command": ["sh", "-c", copied],
        "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
        "volumeMounts": [{"name": "secret", "mountPath": "/secret"}],
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [{"name": "secret", "secret": {"secretName": name}}],
    }
    await core.create_namespaced_pod("default", {"metadata": {"name": name}, "spec": spec})
    client = AsyncKernelClient()
    try:
        address = await _address(core, name)
        client.load_connection_info({**_connection(address), **keys, "key": keys["key"].encode()})
        client.start_channels()
        yield client
    finally:
        client.stop_channels()
        await core.delete_namespaced_pod(name, "default", grace_period_seconds=0)
        await core.delete_namespaced_secret(name, "default")
        await _gone(core, name)


async def _address(core: api.CoreV1Api, name: str) -> str:
    async with watch.Watch() as events:
        async for event in events.stream(core.list_namespaced_pod, "default", field_selector=f"metadata.name={name}"):
            if event["object"].status and event["object"].status.pod_ip:
                return str(event["object"].status.pod_ip)
    raise AssertionError(f"pod {name} got no address")


async def _gone(core: api.CoreV1Api, name: str) -> None:
    while any(pod.metadata.name == name for pod in (await core.list_namespaced_pod("default")).items):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def direct_client(core: api.CoreV1Api, manager: AsyncKernelManager) -> AsyncKernelClient:
    """Return a client of a pod's kernel that knows nothing of us: by the pod's address and the kernel's keys."""
    pods = (await core.list_namespaced_pod("default")).items
    (address,) = [pod.status.pod_ip for pod in pods if manager.kernel_id[:8] in pod.metadata.name]
    given = manager.get_connection_info()
    keys = {name: given[name] for name in ("key", "curve_publickey", "curve_secretkey")}
    client = AsyncKernelClient()
    client.load_connection_info({**_connection(address), **keys})
    client.start_channels()
    return client
