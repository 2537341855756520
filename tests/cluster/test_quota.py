"""A ResourceQuota without Kueue: what waits says for what, what never fits is refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import InvalidRequestError, QuotaExceededError
from jupyter_gpu.schema import Phase, Resources
from tests.builders import a_workload, finished, phase_of, running
from tests.cluster.plugin import Admin, eventually
from tests.cluster.test_starting import reason_of

pytestmark = pytest.mark.cluster


@pytest.fixture
def backend(kubernetes_backend: Backend) -> Backend:
    return kubernetes_backend


async def a_quota(admin: Admin, name: str = "gpu", **hard: str) -> None:
    path = "/api/v1/namespaces/{namespace}/resourcequotas"
    await admin.create(path, "v1/ResourceQuota", name, spec={"hard": hard})

    async def is_in_force() -> Any:
        return [item for item in await admin.items("resourcequotas") if (item.get("status") or {}).get("hard")]

    await eventually(is_in_force)


GPU = "requests.nvidia.com/gpu"


async def test_what_a_quota_holds_back_says_the_numbers_and_starts_when_it_fits(backend: Backend, admin: Admin) -> None:
    await a_quota(admin, **{GPU: "1"})
    await backend.submit(a_workload("w-0", gpus=1))
    await running(backend, "w-0")
    await backend.submit(a_workload("w-1", gpus=1))
    reason = await reason_of(backend, "queue.quota")
    assert reason.message == "waits for the quota gpu: 1 of 1 requests.nvidia.com/gpu are used, and it asks for 1"
    assert {key: reason.facts[key] for key in ("asked", "used", "limit")} == {"asked": 1, "used": 1, "limit": 1}
    assert await phase_of(backend, "w-1") is Phase.QUEUED
    await backend.cancel("w-0", grace_s=0)
    await running(backend, "w-1")


async def test_more_than_a_quota_ever_gives_is_refused_with_its_name(backend: Backend, admin: Admin) -> None:
    await a_quota(admin, **{GPU: "1"})
    with pytest.raises(QuotaExceededError, match=r"the quota gpu can never give 2 requests\.nvidia\.com/gpu: it has 1"):
        await backend.submit(a_workload(gpus=2))
    assert not await admin.names("jobs", "apis/batch/v1")


async def test_a_quota_that_shrank_below_what_waits_ends_it(backend: Backend, admin: Admin) -> None:
    await backend.submit(a_workload("w-0", gpus=0))  # the quotas are read now, and known for a minute
    await a_quota(admin, **{GPU: "1"})
    await backend.submit(a_workload("w-1", gpus=2))
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "queue.quota"
    assert status.reason.facts["heals"] is False


async def test_a_quota_on_objects_is_no_missing_right(backend: Backend, admin: Admin) -> None:
    await a_quota(admin, "objects", **{"count/jobs.batch": "0"})
    with pytest.raises(QuotaExceededError, match=r"quota objects can never give 1 count/jobs\.batch"):
        await backend.submit(a_workload())


async def test_a_quota_on_cpu_limits_is_obeyed(backend: Backend, admin: Admin) -> None:
    await a_quota(admin, "cpus", **{"limits.cpu": "4"})
    await backend.submit(a_workload("w-1"))
    await running(backend, "w-1")
    (pod,) = await admin.items("pods")
    assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "100m"


async def test_where_no_quota_counts_them_idle_cores_may_be_used(backend: Backend, admin: Admin) -> None:
    await backend.submit(a_workload("w-1"))
    await running(backend, "w-1")
    (pod,) = await admin.items("pods")
    assert "cpu" not in pod["spec"]["containers"][0]["resources"]["limits"]


async def test_more_than_any_node_has_is_refused(backend: Backend) -> None:
    with pytest.raises(QuotaExceededError, match=r"one node of this cluster can never give 3 nvidia\.com/gpu: it has 2"):
        await backend.submit(a_workload(gpus=3))
    with pytest.raises(QuotaExceededError, match=r"one node .* 1000 cores"):
        await backend.submit(a_workload(resources=Resources(cpus=1000)))
    with pytest.raises(QuotaExceededError, match="ask for at most"):
        await backend.submit(a_workload(resources=Resources(memory_bytes="100TiB")))
    with pytest.raises(QuotaExceededError, match=r"this cluster can never give 4 nvidia\.com/gpu: it has 2"):
        await backend.submit(a_workload(gpus=2, replicas=2))


async def test_a_kind_of_device_that_no_node_has_is_refused_naming_those_there_are(backend: Backend) -> None:
    asked = Resources.model_validate({"gpus": 1, "accelerator": "amd.com/gpu"})
    with pytest.raises(QuotaExceededError, match=r"amd\.com/gpu: it has none; there is 2 nvidia\.com/gpu"):
        await backend.submit(a_workload(resources=asked))


async def test_a_rule_of_the_namespace_is_told_as_such(backend: Backend, admin: Admin) -> None:
    limit = {"type": "Container", "max": {"memory": "64Mi"}}
    path = "/api/v1/namespaces/{namespace}/limitranges"
    await admin.create(path, "v1/LimitRange", "small", spec={"limits": [limit]})
    await backend.submit(a_workload("w-1"))
    status = await finished(backend, "w-1")
    assert status.reason
    assert status.reason.code == "queue.refused"
    assert "maximum memory usage per Container is 64Mi" in status.reason.message


async def test_a_namespace_for_the_restricted_level_gets_pods_of_that_level(backend: Backend, admin: Admin) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await admin.call("PATCH", "/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    await backend.submit(a_workload("w-1"))
    await running(backend, "w-1")


async def test_what_a_pod_cannot_be_told_is_refused(backend: Backend) -> None:
    with pytest.raises(InvalidRequestError, match="put them into a file"):
        await backend.submit(a_workload(command=("echo", "x" * 120_000)))
