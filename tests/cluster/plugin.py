"""A namespace of a real cluster for each test, and what looks at it from outside.

The cluster is that of KUBECONFIG, with an account that may do everything there; programs run in the image that
JUPYTER_GPU_TEST_IMAGE names (Python and ipykernel). `tests/cluster/run` sets both. Tests with the fixture ``rig`` stop and start
parts of the cluster, and are skipped elsewhere than on our own.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import KubernetesSettings
from tests import builders

IMAGE = os.environ.get("JUPYTER_GPU_TEST_IMAGE", "localhost/pyk:1")
NO_PYTHON_IMAGE = os.environ.get("JUPYTER_GPU_TEST_NO_PYTHON_IMAGE", "")

_GONE_WITHIN_S = 60.0


class Admin:
    """The cluster as its administrator sees it: plain calls, to look behind a backend's back and to set the stage."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> dict[str, Any]:
        """Make a call; ``{namespace}`` in the path is the test's."""
        path = path.format(namespace=self.namespace)
        return await self.client.call(method, path, what=f"{method} {path}", body=body, query=query)

    async def create(self, path: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        """Create an object, ``v1/Secret`` say, and return it."""
        version, _, kind = kind.rpartition("/")
        document = {"apiVersion": version, "kind": kind, "metadata": {"name": name} | fields.pop("metadata", {}), **fields}
        return await self.call("POST", path, document)

    async def names(self, plural: str, group: str = "api/v1") -> set[str]:
        """Return the names of all objects of a kind in the test's namespace."""
        return {item["metadata"]["name"] for item in await self.items(plural, group)}

    async def items(self, plural: str, group: str = "api/v1") -> list[dict[str, Any]]:
        """Return all objects of a kind in the test's namespace."""
        return (await self.call("GET", f"/{group}/namespaces/{{namespace}}/{plural}"))["items"]

    async def delete(self, plural: str, name: str, group: str = "api/v1", **options: Any) -> None:
        """Delete an object of the test's namespace, if it is there."""
        with suppress(NotFoundError):
            await self.call("DELETE", f"/{group}/namespaces/{{namespace}}/{plural}/{name}", options)


async def eventually(check: Callable[[], Awaitable[Any]], deadline_s: float = builders.DEADLINE_S) -> Any:
    """Wait until something comes true, and return it."""
    last: Any = None
    with anyio.move_on_after(deadline_s):
        while True:
            if last := await check():
                return last
            await anyio.sleep(0.05)
    raise AssertionError(f"not true within {deadline_s:g} s; last seen: {last!r}")


@pytest.fixture(scope="session")
def _namespaces() -> Iterator[list[str]]:
    """The namespaces that tests made: all are gone when the session ends."""
    made: list[str] = []
    yield made
    if made:
        asyncio.run(_wait_for_end_of(set(made)))


async def _wait_for_end_of(namespaces: set[str]) -> None:
    async with AdminOf(KubernetesSettings()) as client:

        async def are_gone() -> bool:
            listed = await client.call("GET", "/api/v1/namespaces", what="list namespaces")
            return not namespaces & {item["metadata"]["name"] for item in listed["items"]}

        await eventually(are_gone, _GONE_WITHIN_S)


class AdminOf:
    """A client of the cluster of KUBECONFIG."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings

    async def __aenter__(self) -> Any:
        from jupyter_gpu.backends.kubernetes.client import Client

        self._client = await Client.connect(self._settings)
        return self._client

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()


@pytest.fixture
async def admin(_namespaces: list[str]) -> AsyncIterator[Admin]:
    """The administrator, with a namespace of this test's own, which is removed after it."""
    name = f"jg-test-{secrets.token_hex(4)}"
    _namespaces.append(name)
    async with AdminOf(KubernetesSettings(namespace=name)) as client:
        admin = Admin(client, name)
        await admin.create("/api/v1/namespaces", "v1/Namespace", name)
        await eventually(lambda: admin.names("serviceaccounts"))  # before that no pod can be made
        yield admin
        await _empty(admin)
        await admin.call("DELETE", f"/api/v1/namespaces/{name}")


async def _empty(admin: Admin) -> None:
    """End all pods, and wait for that: the next test wants their devices."""
    for job in await admin.items("jobs", "apis/batch/v1"):
        await admin.delete("jobs", job["metadata"]["name"], "apis/batch/v1", propagationPolicy="Background")
    for pod in await admin.names("pods"):
        await admin.delete("pods", pod, gracePeriodSeconds=1)

    async def is_empty() -> bool:
        return not await admin.names("pods")

    await eventually(is_empty, _GONE_WITHIN_S)


@pytest.fixture
def namespace(admin: Admin) -> str:
    """The namespace of this test."""
    return admin.namespace


@pytest.fixture
def kubernetes_settings(namespace: str, monkeypatch: pytest.MonkeyPatch) -> KubernetesSettings:
    """A place in the cluster of KUBECONFIG; the builders' programs run in the test image."""
    monkeypatch.setattr(builders, "ENVIRONMENT", builders.ENVIRONMENT.model_copy(update={"image": IMAGE}))
    return KubernetesSettings(namespace=namespace, image_pull_policy="IfNotPresent", client_lease_s=3)


@pytest.fixture
async def kubernetes_backend(kubernetes_settings: KubernetesSettings) -> AsyncIterator[Backend]:
    """A place in a real cluster, with a namespace of its own."""
    from jupyter_gpu.backends.kubernetes import KubernetesBackend

    async with KubernetesBackend("kubernetes", kubernetes_settings, leftover_s=1.0) as backend:
        yield backend


@pytest.fixture
async def second_kubernetes_backend(
    kubernetes_backend: Backend, kubernetes_settings: KubernetesSettings
) -> AsyncIterator[Backend]:
    """Another client of the same place."""
    from jupyter_gpu.backends.kubernetes import KubernetesBackend

    async with KubernetesBackend("kubernetes", kubernetes_settings, leftover_s=1.0) as backend:
        yield backend


@dataclass(frozen=True)
class Accounts:
    """Makes service accounts of the test's namespace, each with the rights of a role."""

    admin: Admin
    settings: KubernetesSettings
    folder: Path

    async def settings_for(self, name: str, role: Mapping[str, Any] | None, *, token: str | None = None) -> KubernetesSettings:
        """Return settings that log in as a new account.

        Args:
            name: of the account.
            role: a Role document; None gives it no rights.
            token: used in place of a good one.
        """
        admin = self.admin
        await admin.create("/api/v1/namespaces/{namespace}/serviceaccounts", "v1/ServiceAccount", name)
        if role:
            rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
            await admin.create(f"{rbac}/roles", "rbac.authorization.k8s.io/v1/Role", name, rules=role["rules"])
            subject = {"kind": "ServiceAccount", "name": name, "namespace": admin.namespace}
            binding = {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}, "subjects": [subject]}
            await admin.create(f"{rbac}/rolebindings", "rbac.authorization.k8s.io/v1/RoleBinding", name, **binding)
        path = f"/api/v1/namespaces/{{namespace}}/serviceaccounts/{name}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
        granted = (await admin.call("POST", path, request))["status"]["token"]
        return self.settings.model_copy(update={"kubeconfig": self.kubeconfig(name, token=token or granted)})

    def kubeconfig(self, name: str, *, token: str, server: str | None = None) -> Path:
        """Write a kubeconfig for the same cluster and return its path."""
        configuration = self.admin.client._login.api.configuration
        cluster = {"server": server or configuration.host, "certificate-authority": configuration.ssl_ca_cert}
        context = {"cluster": "c", "user": "u", "namespace": self.admin.namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": context}],
        }
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(document))  # JSON is YAML
        return path


@pytest.fixture
def accounts(admin: Admin, kubernetes_settings: KubernetesSettings, tmp_path: Path) -> Accounts:
    """Other accounts than the administrator's."""
    return Accounts(admin, kubernetes_settings, tmp_path)


@pytest.fixture
def rig() -> Callable[..., None]:
    """Run a command of our own cluster's script, such as ``stop kube-apiserver``."""
    script = os.environ.get("JUPYTER_GPU_TEST_RIG")
    if not script:
        pytest.skip("the cluster is not our own rig")

    def run(*words: str) -> None:
        subprocess.run([script, *words], check=True, capture_output=True)

    return run
