"""A crash between two steps heals, and nothing stays that nobody needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.kubernetes import KubernetesBackend
from jupyter_gpu.errors import ConflictError, NotFoundError
from jupyter_gpu.schema import KubernetesSettings, Phase
from tests.builders import a_kernel, a_workload, finished, gone, log_of, program, running, said, texts, time_passes
from tests.cluster.plugin import Admin, eventually

pytestmark = pytest.mark.cluster

KEYS, OTHER_KEYS = {"key": "mine"}, {"key": "another's"}


@pytest.fixture
def backend(kubernetes_backend: KubernetesBackend) -> KubernetesBackend:
    return kubernetes_backend


class CrashError(Exception):
    """Stands for the end of the process."""


async def crash_before(backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Let the next submit crash before its call on this kind of object."""
    await backend.describe()
    assert backend._parts
    client = backend._parts.client

    def crashing(method: str) -> Any:
        plain = getattr(client, method)

        async def call(kind: Any, *args: Any, **kwargs: Any) -> Any:
            if f"{method} {kind.plural}" == step:
                raise CrashError
            return await plain(kind, *args, **kwargs)

        return call

    for method in ("create", "patch"):
        monkeypatch.setattr(client, method, crashing(method))


@pytest.mark.parametrize("step", ["create secrets", "create jobs", "patch secrets"])
async def test_a_crash_between_two_steps_heals_at_the_next_submit(
    backend: KubernetesBackend,
    second_kubernetes_backend: Backend,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    await crash_before(backend, monkeypatch, step)
    with pytest.raises(CrashError):
        await backend.submit(a_kernel(secrets=("key",)), secrets=KEYS)
    await second_kubernetes_backend.submit(a_kernel(secrets=("key",)), secrets=OTHER_KEYS)
    there = KEYS if step != "create secrets" else OTHER_KEYS  # the Secret of whoever came first stays
    assert await second_kubernetes_backend.connection("k-1") == there
    await running(second_kubernetes_backend, "k-1")
    assert await admin.names("secrets") == {"k-1-1"}


async def test_a_secret_whose_job_never_came_is_swept_up(
    backend: KubernetesBackend, second_kubernetes_backend: Backend, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crash_before(backend, monkeypatch, "create jobs")
    with pytest.raises(CrashError):
        await backend.submit(a_kernel(secrets=("key",)), secrets=KEYS)
    assert await admin.names("secrets") == {"k-1-1"}
    async with time_passes(second_kubernetes_backend):
        await eventually(lambda: no_secrets(admin))


async def test_a_secret_that_is_swept_up_under_a_submit_comes_again(
    backend: KubernetesBackend, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        await crash_before(backend, patch, "create jobs")
        with pytest.raises(CrashError):
            await backend.submit(a_kernel(secrets=("key",)), secrets=KEYS)
    assert backend._parts
    plain = backend._parts.submitter._create_job

    async def create_job(job: Any, *, dry_run: bool = False) -> Any:
        await admin.delete("secrets", "k-1-1")
        return await plain(job, dry_run=dry_run)

    monkeypatch.setattr(backend._parts.submitter, "_create_job", create_job)
    await backend.submit(a_kernel(secrets=("key",)), secrets=OTHER_KEYS)
    assert await backend.connection("k-1") == OTHER_KEYS


async def test_an_old_secret_of_other_content_gives_way(
    backend: KubernetesBackend, second_kubernetes_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_gpu.backends.kubernetes import submitting

    await crash_before(backend, monkeypatch, "create jobs")
    with pytest.raises(CrashError):
        await backend.submit(a_kernel(secrets=("key",)), secrets=KEYS)
    with pytest.raises(ConflictError, match="is being submitted with other content"):
        await second_kubernetes_backend.submit(a_kernel(secrets=("key",), priority=7), secrets=OTHER_KEYS)
    monkeypatch.setattr(submitting, "_RACE", timedelta(seconds=-1))
    await second_kubernetes_backend.submit(a_kernel(secrets=("key",), priority=7), secrets=OTHER_KEYS)
    assert await second_kubernetes_backend.connection("k-1") == OTHER_KEYS


async def no_secrets(admin: Admin) -> bool:
    return not await admin.names("secrets")


async def no_pods(admin: Admin) -> bool:
    return not await admin.names("pods")


@pytest.mark.parametrize("started", [False, True], ids=["queued", "running"])
async def test_after_a_cancel_only_the_story_is_left(backend: Backend, admin: Admin, started: bool) -> None:
    if not started:
        await backend.submit(a_workload("w-0", gpus=2))
        await running(backend, "w-0")
    await backend.submit(a_kernel(secrets=("key",), gpus=2), secrets=KEYS)
    if started:
        await running(backend, "k-1")
    await backend.cancel("k-1")
    await finished(backend, "k-1")
    async with time_passes(backend):
        await eventually(lambda: no_secrets(admin))
    with pytest.raises(NotFoundError):
        await backend.connection("k-1")
    living = [pod for pod in await admin.items("pods") if pod["status"]["phase"] not in ("Succeeded", "Failed")]
    assert {pod["metadata"]["labels"]["jupyter-gpu/workload"] for pod in living} <= {"w-0"}
    assert "k-1-1" in await admin.names("jobs", "apis/batch/v1")
    await backend.aclose()
    assert {name for name in await admin.names("leases", "apis/coordination.k8s.io/v1") if "client" in name} == set()


async def test_a_story_goes_with_its_time_and_takes_all_along(backend: Backend, admin: Admin) -> None:
    await backend.submit(a_workload("w-1", ttl_s=1, command=program()))
    await finished(backend, "w-1")
    await gone(backend, "w-1")
    await eventually(lambda: no_pods(admin))
    assert await admin.names("jobs", "apis/batch/v1") == set()


async def test_earlier_attempts_stay_as_long_as_the_newest(backend: Backend, admin: Admin) -> None:
    for number in (1, 2):
        await backend.submit(a_workload("w-1", command=program((f"attempt {number}",)), labels={"n": str(number)}))
        await finished(backend, "w-1")
    await backend.tend(datetime.now(UTC))
    assert await admin.names("jobs", "apis/batch/v1") == {"w-1-1", "w-1-2"}
    assert texts(await log_of(backend, "w-1", attempt=1)) == ["attempt 1"]
    assert texts(await log_of(backend, "w-1")) == ["attempt 2"]
    await backend.tend(datetime.now(UTC) + timedelta(days=2))
    assert await admin.names("jobs", "apis/batch/v1") == set()


async def test_how_it_ended_is_known_when_its_pod_is_gone(backend: Backend, admin: Admin) -> None:
    await backend.submit(a_workload("w-1", command=program(exit_code=3)))
    before = await finished(backend, "w-1")
    await backend.tend(datetime.now(UTC))
    for pod in await admin.names("pods"):
        await admin.delete("pods", pod)
    await eventually(lambda: no_pods(admin))
    after = await finished(backend, "w-1")
    assert (after.phase, after.reason, after.ended) == (before.phase, before.reason, before.ended)
    with pytest.raises(NotFoundError, match="it goes with the pod"):
        await log_of(backend, "w-1")


async def test_a_wish_to_end_that_was_only_written_down_is_carried_out(
    backend: KubernetesBackend, second_kubernetes_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await backend.submit(a_workload("w-1"))
    await said(backend, "w-1", "hello")
    await crash_before(backend, monkeypatch, "patch pods")
    with pytest.raises(CrashError):
        await backend.cancel("w-1")
    assert (await finished(second_kubernetes_backend, "w-1")).phase is Phase.CANCELLED


async def test_the_configmap_is_shared_and_made_again(
    backend: Backend, admin: Admin, kubernetes_settings: KubernetesSettings
) -> None:
    await backend.submit(a_workload("w-1", command=program()))
    await backend.submit(a_workload("w-2", command=program()))
    (name,) = {name for name in await admin.names("configmaps") if name.startswith("jupyter-gpu-")}
    await admin.delete("configmaps", name)
    async with KubernetesBackend("k", kubernetes_settings) as another:
        await another.submit(a_workload("w-3", command=program()))
        await finished(another, "w-3")
