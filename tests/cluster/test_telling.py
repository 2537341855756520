"""What a cluster without Kueue tells for a forecast, a story and a sum, and what it can't do."""

from __future__ import annotations

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import InvalidRequestError, UnsupportedError
from jupyter_gpu.schema import Phase, Quota
from tests.builders import a_workload, finished, program, running, until
from tests.cluster.plugin import Admin, eventually
from tests.cluster.test_quota import a_quota

pytestmark = pytest.mark.cluster

GPU = "nvidia.com/gpu"


@pytest.fixture
def backend(kubernetes_backend: Backend) -> Backend:
    return kubernetes_backend


async def test_a_place_tells_what_is_wanted_and_held_of_which_devices(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2, priority=1))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=1))
    await until(backend, lambda workloads: "w-2" in workloads)
    place = await backend.describe()
    assert not place.decides
    (stock,) = [stock for stock in place.stocks if stock.resource == GPU]
    assert (stock.capacity, stock.free) == (2, 0)
    (holding,) = place.holdings
    assert (holding.id, holding.holds[GPU], holding.models) == ("w-1", 2, {stock.model: 2} if stock.model else {})
    (claim,) = place.claims
    assert (claim.id, claim.gpus) == ("w-2", 1)
    assert place.time_s >= claim.since_s - 2  # the cluster's times are whole seconds
    assert place.queue_set.queues == ()


async def test_a_quota_is_shown_as_the_namespaces_share(backend: Backend, admin: Admin) -> None:
    await a_quota(admin, **{"requests.nvidia.com/gpu": "1"})
    await backend.submit(a_workload("w-1", gpus=1))
    await running(backend, "w-1")
    place = await backend.describe()
    (queue,) = place.queue_set.queues
    assert queue.name == "default"
    assert queue.quotas[GPU] == Quota(nominal=1)
    assert [holding.id for holding in place.holdings] == ["w-1"]


async def test_what_others_use_of_a_quota_is_held_by_somebody(backend: Backend, admin: Admin) -> None:
    await a_quota(admin, **{"requests.nvidia.com/gpu": "2"})
    held = {GPU: "1"}
    container = {"name": "c", "image": "localhost/pause:1", "resources": {"requests": held, "limits": held}}
    await admin.create("/api/v1/namespaces/{namespace}/pods", "v1/Pod", "theirs", spec={"containers": [container]})

    async def is_seen() -> bool:
        return any(holding.holds == {GPU: 1} for holding in (await backend.describe()).holdings)

    await eventually(is_seen)


async def test_a_story_outlives_the_pods(backend: Backend, admin: Admin) -> None:
    await backend.submit(a_workload("w-1", gpus=1, command=program(exit_code=3)))
    status = await finished(backend, "w-1")

    async def is_settled() -> bool:
        await backend.tend(status.created)
        (job,) = await admin.items("jobs", "apis/batch/v1")
        return "jupyter-gpu/end" in job["metadata"]["annotations"]

    await eventually(is_settled)
    before = await backend.story("w-1"), await backend.usage()
    for pod in await admin.names("pods"):
        await admin.delete("pods", pod)

    async def are_gone() -> bool:
        return not await admin.names("pods")

    await eventually(are_gone)
    after = await backend.story("w-1"), await backend.usage()
    assert after[1] == before[1]
    assert [event.phase for event in after[0]] == [Phase.QUEUED, Phase.RUNNING, Phase.FAILED]
    assert after[0][-1] == before[0][-1]


async def test_what_a_program_used_is_told_with_its_end(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program()))
    await finished(backend, "w-1")
    (used,) = await backend.usage()
    assert used.cpu_seconds > 0
    assert used.peak_memory_bytes > 0


async def test_what_a_cluster_cannot_do_is_refused(backend: Backend, admin: Admin) -> None:
    with pytest.raises(UnsupportedError, match="leave retries out"):
        await backend.submit(a_workload(retries=1))
    with pytest.raises(InvalidRequestError, match="no queue 'vision' in this cluster; there is: default"):
        await backend.submit(a_workload(queue="vision"))
    assert not await admin.names("jobs", "apis/batch/v1")
