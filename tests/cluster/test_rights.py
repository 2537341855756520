"""What an account lacks is named; the role we ship is enough."""

from __future__ import annotations

import socket
from contextlib import aclosing

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.kubernetes import KubernetesBackend
from jupyter_gpu.backends.kubernetes.manifests.roles import user_role
from jupyter_gpu.errors import (
    BackendUnavailableError,
    ConflictError,
    InvalidRequestError,
    JupyterGpuError,
    NotAllowedError,
    NotFoundError,
)
from jupyter_gpu.schema import KubernetesSettings, Port
from tests.builders import GREETING, KEYS, a_kernel, a_workload, end_all, finished, log_of, program, running, said, shown, texts
from tests.cluster.plugin import Accounts, Admin
from tests.cluster.test_ports import read_from

pytestmark = pytest.mark.cluster


def without(verb: str, group: str, resource: str):
    """Return the user's role without one right."""
    role = user_role()
    rules = []
    for rule in role["rules"]:
        if rule["apiGroups"] == [group] and rule["resources"] == [resource]:
            rule = rule | {"verbs": [word for word in rule["verbs"] if word != verb]}
        rules.append(rule)
    return role | {"rules": rules}


async def test_the_user_role_is_enough_for_everything(accounts: Accounts) -> None:
    settings = await accounts.settings_for("ana", user_role())
    async with KubernetesBackend("k", settings.model_copy(update={"reach": "port-forward"})) as backend:
        place = await backend.describe()
        assert place.identity == f"system:serviceaccount:{settings.namespace}:ana"
        assert {missing.what for missing in place.missing} == {"nodes", "namespace"}
        assert {missing.right for missing in place.missing} == {"list nodes", "get namespaces"}
        assert place.may_grow  # there may be devices that it can't see
        ports = (Port(name="http", number=8080),)
        await backend.submit(a_kernel("k-1"), secrets=KEYS)
        assert await backend.connection("k-1") == KEYS
        await backend.submit(a_workload("w-1", command=program(seconds=600, serves="http"), ports=ports))
        await said(backend, "w-1", "hello")
        async with backend.hold("w-1"), backend.open_port("w-1", port="http") as address:
            assert await read_from(address) == GREETING.encode()
        await end_all(backend)


async def test_accounts_of_one_namespace_do_not_see_each_other(accounts: Accounts, kubernetes_backend: Backend) -> None:
    settings = await accounts.settings_for("ana", user_role())
    await kubernetes_backend.submit(a_kernel("k-1"), secrets=KEYS)
    async with KubernetesBackend("k", settings) as backend:
        assert await shown(backend) == {}
        with pytest.raises(ConflictError, match="belongs to"):
            await backend.submit(a_kernel("k-1"), secrets=KEYS)
        with pytest.raises(ConflictError, match="belongs to"):
            await backend.connection("k-1")
        for call in (
            backend.cancel("k-1"),
            backend.hold("k-1").__aenter__(),
            backend.open_port("k-1", port="shell").__aenter__(),
        ):
            with pytest.raises(NotFoundError, match="k-1"):
                await call


@pytest.mark.parametrize(
    ("right", "call"),
    [
        (("create", "batch", "jobs"), "submit"),
        (("list", "batch", "jobs"), "submit"),
        (("list", "", "pods"), "submit"),
        (("create", "", "secrets"), "submit"),
        (("get", "", "configmaps"), "submit"),
        (("list", "batch", "jobs"), "watch"),
        (("watch", "batch", "jobs"), "watch"),
        (("watch", "", "pods"), "watch"),
        (("get", "", "secrets"), "connection"),
        (("patch", "batch", "jobs"), "cancel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(word for word in value if word),
)
async def test_a_missing_right_is_named_with_verb_resource_and_namespace(
    accounts: Accounts, kubernetes_backend: Backend, right: tuple[str, str, str], call: str
) -> None:
    settings = await accounts.settings_for("ana", without(*right))
    verb, group, resource = right
    async with KubernetesBackend("k", settings) as backend:
        with pytest.raises(NotAllowedError) as caught:
            await the_call(backend, call, accounts, settings)
    words = f"may not {verb} {resource}{'.' + group if group else ''} in the namespace {settings.namespace}"
    assert words in str(caught.value)
    assert "jupyter-gpu-user" in str(caught.value)


async def the_call(backend: Backend, call: str, accounts: Accounts, settings: KubernetesSettings) -> None:
    if call == "watch":
        async with aclosing(backend.watch()) as steps:
            await anext(steps)
            await anext(steps)
    await backend.submit(a_kernel("k-1"), secrets=KEYS)
    if call == "connection":
        await backend.connection("k-1")
    if call == "cancel":
        await backend.cancel("k-1")


async def test_what_is_missing_stands_in_the_place(accounts: Accounts) -> None:
    settings = await accounts.settings_for("ana", without("create", "coordination.k8s.io", "leases"))
    async with KubernetesBackend("k", settings) as backend:
        missing = {missing.right: missing.why for missing in (await backend.describe()).missing}
    assert "create leases.coordination.k8s.io" in missing
    assert "which client holds a Workload" in missing["create leases.coordination.k8s.io"]


async def test_without_leases_all_else_works(accounts: Accounts) -> None:
    role = user_role()
    rules = [rule for rule in role["rules"] if "leases" not in rule["resources"]]
    settings = await accounts.settings_for("ana", role | {"rules": rules})
    async with KubernetesBackend("k", settings) as backend:
        await backend.submit(a_workload("w-1", command=program(), orphan_after_s=600))
        async with backend.hold("w-1"):
            await finished(backend, "w-1")
        assert "hello" in texts(await log_of(backend, "w-1"))


async def test_without_events_all_else_works(accounts: Accounts) -> None:
    role = user_role()
    rules = [rule for rule in role["rules"] if "events" not in rule["resources"]]
    settings = await accounts.settings_for("ana", role | {"rules": rules})
    async with KubernetesBackend("k", settings) as backend:
        await backend.submit(a_workload("w-1", command=program()))
        await finished(backend, "w-1")


async def test_no_rights_at_all_is_no_traceback(accounts: Accounts) -> None:
    settings = await accounts.settings_for("nobody", None)
    async with KubernetesBackend("k", settings) as backend:
        with pytest.raises(NotAllowedError, match=":nobody may not "):
            await backend.submit(a_workload())


async def test_a_bad_token_says_to_log_in_again(accounts: Accounts) -> None:
    settings = await accounts.settings_for("ana", user_role(), token="not-a-token")
    async with KubernetesBackend("k", settings) as backend:
        with pytest.raises(NotAllowedError, match="log in to the cluster again"):
            await backend.describe()


async def test_a_token_that_was_renewed_is_taken_up(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_gpu.backends.kubernetes import client

    monkeypatch.setattr(client, "_LOGIN_AGAIN_AFTER_S", 0.0)
    settings = await accounts.settings_for("ana", user_role())
    assert settings.kubeconfig
    good = settings.kubeconfig.read_text()
    async with KubernetesBackend("k", settings) as backend:
        await backend.describe()
        connected = backend._parts
        assert connected
        connected.client._login.api.configuration.api_key["BearerToken"] = "Bearer expired"
        settings.kubeconfig.write_text(good)
        await backend.describe()


async def test_an_api_server_that_is_not_there_says_so(accounts: Accounts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    path = accounts.kubeconfig("gone", token="t", server=f"https://127.0.0.1:{port}")
    async with KubernetesBackend("k", KubernetesSettings(kubeconfig=path)) as backend:
        with pytest.raises(BackendUnavailableError, match=f"127.0.0.1:{port} can't be reached"):
            await backend.describe()
        with pytest.raises(BackendUnavailableError):
            await anext(backend.watch())


async def test_a_server_that_never_answers_is_given_up(accounts: Accounts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = accounts.kubeconfig("mute", token="t", server=f"http://127.0.0.1:{server.getsockname()[1]}")
        async with KubernetesBackend("k", KubernetesSettings(kubeconfig=path, request_timeout_s=0.3)) as backend:
            with pytest.raises(JupyterGpuError, match="did not answer in time"):
                await backend.describe()


async def test_a_name_that_does_not_resolve_says_so(accounts: Accounts) -> None:
    path = accounts.kubeconfig("nowhere", token="t", server="https://cluster.invalid:6443")
    async with KubernetesBackend("k", KubernetesSettings(kubeconfig=path, request_timeout_s=5)) as backend:
        with pytest.raises(JupyterGpuError, match=r"cluster\.invalid"):
            await backend.describe()


async def test_a_broken_kubeconfig_says_which(accounts: Accounts) -> None:
    path = accounts.folder / "broken"
    path.write_text("{]")
    async with KubernetesBackend("k", KubernetesSettings(kubeconfig=path)) as backend:
        with pytest.raises(InvalidRequestError, match="broken can't be used"):
            await backend.describe()


async def test_an_unknown_context_says_so(accounts: Accounts) -> None:
    async with KubernetesBackend("k", KubernetesSettings(context="there-is-none")) as backend:
        with pytest.raises(InvalidRequestError, match="there-is-none"):
            await backend.describe()


async def test_a_namespace_that_is_not_there_says_so(kubernetes_settings: KubernetesSettings) -> None:
    settings = kubernetes_settings.model_copy(update={"namespace": "there-is-no-such-namespace"})
    async with KubernetesBackend("k", settings) as backend:
        with pytest.raises(NotFoundError, match="there-is-no-such-namespace"):
            await backend.submit(a_workload())


async def test_an_account_of_its_own_runs_its_kernels_beside_the_others(accounts: Accounts, admin: Admin) -> None:
    settings = await accounts.settings_for("ana", user_role())
    async with KubernetesBackend("k", settings) as backend:
        await backend.submit(a_workload("w-1"))
        await running(backend, "w-1")
        await end_all(backend)
    (job,) = await admin.items("jobs", "apis/batch/v1")
    assert job["metadata"]["annotations"]["jupyter-gpu/owner"].endswith(":ana")
