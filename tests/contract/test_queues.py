"""Queues: whose share is what, what may be borrowed, and what priority does."""

from __future__ import annotations

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import ConflictError, InvalidRequestError, NotFoundError, QuotaExceededError, UnsupportedError
from jupyter_gpu.schema import Phase, QueueSet, QueueSpec, Quota, Resources
from tests.builders import a_queue, a_workload, finished, phase_of, program, running, shown, status_of, until
from tests.contract.places import decides_itself, in_a_cluster

GPU = "nvidia.com/gpu"
TWO = QueueSet(queues=(a_queue("vision", 1), a_queue("speech", 1)))
SHARED = QueueSet(queues=(a_queue("vision", 1, cohort="lab"), a_queue("speech", 1, cohort="lab")))


@decides_itself
async def test_where_nobody_set_queues_there_is_one_with_all_devices(backend: Backend) -> None:
    place = await backend.describe()
    assert [queue.name for queue in place.queues] == ["default"]
    assert place.queue_set.queue("default")
    assert place.decides


@decides_itself
async def test_queues_that_were_set_are_shown_with_their_quotas(backend: Backend, second_client: Backend) -> None:
    await backend.apply_queues(SHARED)
    for client in (backend, second_client):
        place = await client.describe()
        assert place.queue_set == SHARED
        assert {(queue.name, queue.cohort) for queue in place.queues} == {("vision", "lab"), ("speech", "lab")}
        assert all(queue.quotas[GPU] == Quota(nominal=1) for queue in place.queues)


@decides_itself
async def test_a_queue_shows_what_it_uses_and_what_of_it_is_borrowed(backend: Backend) -> None:
    await backend.apply_queues(SHARED)
    await backend.submit(a_workload("w-1", gpus=2, queue="vision"))
    await running(backend, "w-1")
    queues = {queue.name: queue for queue in (await backend.describe()).queues}
    assert (queues["vision"].used[GPU], queues["vision"].borrowed[GPU]) == (2, 1)
    assert queues["speech"].used.get(GPU, 0) == 0


@decides_itself
async def test_a_dry_run_sets_no_queues(backend: Backend) -> None:
    before = (await backend.describe()).queue_set
    await backend.apply_queues(TWO, dry_run=True)
    assert (await backend.describe()).queue_set == before


@decides_itself
async def test_an_unknown_queue_is_refused_with_the_names_of_those_there_are(backend: Backend) -> None:
    await backend.apply_queues(TWO)
    with pytest.raises(InvalidRequestError, match="nobody") as caught:
        await backend.submit(a_workload("w-1", queue="nobody"))
    assert all(queue.name in str(caught.value) for queue in TWO.queues)
    assert await shown(backend) == {}


@decides_itself
async def test_a_queue_gives_no_more_than_its_quota_though_devices_are_free(backend: Backend) -> None:
    await backend.apply_queues(TWO)
    await backend.submit(a_workload("w-1", gpus=1, queue="vision"))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=1, queue="vision"))
    status = await status_of(backend, "w-2")
    assert status.phase is Phase.QUEUED
    assert status.position == 1
    assert status.reason
    assert status.reason.code == "queue.quota"
    assert "vision" in status.reason.message
    await backend.submit(a_workload("w-3", gpus=1, queue="speech"))
    await running(backend, "w-3")
    assert await phase_of(backend, "w-2") is Phase.QUEUED


@decides_itself
async def test_more_than_a_queue_may_ever_hold_is_refused(backend: Backend) -> None:
    await backend.apply_queues(TWO)
    with pytest.raises(QuotaExceededError, match="vision") as caught:
        await backend.submit(a_workload("w-1", gpus=2, queue="vision"))
    assert (caught.value.resource, caught.value.asked, caught.value.limit) == (GPU, 2, 1)
    assert await shown(backend) == {}


@decides_itself
async def test_devices_that_a_queue_has_no_quota_for_are_refused(backend: Backend) -> None:
    await backend.apply_queues(QueueSet(queues=(a_queue("vision"), QueueSpec(name="empty"))))
    with pytest.raises(QuotaExceededError, match="empty"):
        await backend.submit(a_workload("w-1", gpus=1, queue="empty"))
    await backend.submit(a_workload("w-2", queue="empty"))  # cores and memory count only where a quota names them
    await running(backend, "w-2")


@decides_itself
async def test_cores_and_memory_count_where_a_quota_names_them(backend: Backend) -> None:
    quotas = {"cpu": Quota(nominal=1), "memory": Quota.model_validate({"nominal": "1GiB"})}
    await backend.apply_queues(QueueSet(queues=(QueueSpec(name="default", quotas=quotas),)))
    small = Resources(cpus=0.6, memory_bytes="128MiB")
    await backend.submit(a_workload("w-1", resources=small))
    await backend.submit(a_workload("w-2", resources=small))
    await running(backend, "w-1")
    status = await status_of(backend, "w-2")
    assert status.phase is Phase.QUEUED
    assert status.reason
    assert status.reason.code == "queue.quota"
    with pytest.raises(QuotaExceededError, match="memory"):
        await backend.submit(a_workload("w-3", resources=Resources(cpus=0.1, memory_bytes="2GiB")))


@decides_itself
async def test_what_the_cohort_does_not_use_may_be_borrowed(backend: Backend) -> None:
    await backend.apply_queues(SHARED)
    for id in ("w-1", "w-2"):
        await backend.submit(a_workload(id, gpus=1, queue="vision"))
        await running(backend, id)


@decides_itself
async def test_what_is_borrowed_ends_at_its_limit(backend: Backend) -> None:
    limited = QueueSet(queues=(a_queue("vision", 1, cohort="lab", borrowing_limit=0), a_queue("speech", 1, cohort="lab")))
    await backend.apply_queues(limited)
    with pytest.raises(QuotaExceededError, match="vision"):
        await backend.submit(a_workload("w-1", gpus=2, queue="vision"))
    for id in ("w-2", "w-3"):
        await backend.submit(a_workload(id, gpus=1, queue="vision"))
    await running(backend, "w-2")
    assert await phase_of(backend, "w-3") is Phase.QUEUED


@decides_itself
async def test_positions_are_counted_in_ones_own_queue(backend: Backend) -> None:
    await backend.apply_queues(SHARED)
    await backend.submit(a_workload("w-0", gpus=2, queue="vision"))
    for id, queue in (("w-1", "vision"), ("w-2", "speech"), ("w-3", "vision"), ("w-4", "speech")):
        await backend.submit(a_workload(id, gpus=1, queue=queue))
    assert [(await status_of(backend, f"w-{number}")).position for number in range(1, 5)] == [1, 1, 2, 2]
    waiters = {queue.name: queue.waiters for queue in (await backend.describe()).queues}
    assert waiters == {"vision": ("w-1", "w-3"), "speech": ("w-2", "w-4")}


@decides_itself
async def test_a_larger_quota_lets_those_who_wait_for_it_start(backend: Backend) -> None:
    await backend.apply_queues(TWO)
    for id in ("w-1", "w-2"):
        await backend.submit(a_workload(id, gpus=1, queue="vision"))
    await running(backend, "w-1")
    assert await phase_of(backend, "w-2") is Phase.QUEUED
    await backend.apply_queues(QueueSet(queues=(a_queue("vision", 2), a_queue("speech", 0))))
    await running(backend, "w-2")


@decides_itself
async def test_a_smaller_quota_ends_nobody(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await running(backend, "w-1")
    await backend.apply_queues(QueueSet(queues=(a_queue("default", 1),)))
    await backend.submit(a_workload("w-2", gpus=1))
    assert await phase_of(backend, "w-1") is Phase.RUNNING
    assert await phase_of(backend, "w-2") is Phase.QUEUED
    await backend.cancel("w-1")
    await running(backend, "w-2")


@decides_itself
@pytest.mark.parametrize("gpus", [0, 2], ids=["runs", "waits"])
async def test_a_queue_with_work_is_not_taken_away(backend: Backend, gpus: int) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await backend.submit(a_workload("w-2", gpus=gpus))
    before = (await backend.describe()).queue_set
    for dry_run in (True, False):
        with pytest.raises(ConflictError, match=r"default.*w-"):
            await backend.apply_queues(TWO, dry_run=dry_run)
    assert (await backend.describe()).queue_set == before


@decides_itself
async def test_a_queue_whose_work_has_ended_may_be_taken_away(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program()))
    await finished(backend, "w-1")
    await backend.apply_queues(TWO)
    assert {queue.name for queue in (await backend.describe()).queues} == {"vision", "speech"}


@decides_itself
async def test_a_quota_of_what_the_place_does_not_have_is_refused(backend: Backend) -> None:
    strange = QueueSpec(name="vision", quotas={"amd.com/gpu": Quota(nominal=1)})
    with pytest.raises(InvalidRequestError, match=r"amd\.com/gpu") as caught:
        await backend.apply_queues(QueueSet(queues=(strange,)))
    assert "vision" in str(caught.value)


@decides_itself
async def test_an_empty_set_is_one_queue_with_everything(backend: Backend) -> None:
    await backend.apply_queues(TWO)
    await backend.apply_queues(QueueSet())
    await backend.submit(a_workload("w-1", gpus=2))
    await running(backend, "w-1")


@decides_itself
async def test_a_new_priority_moves_who_waits_in_its_line(backend: Backend, second_client: Backend) -> None:
    await backend.submit(a_workload("w-0", gpus=2))
    for id in ("w-1", "w-2"):
        await backend.submit(a_workload(id, gpus=2))
    await second_client.reprioritise("w-2", 5)
    assert [(await status_of(backend, id)).position for id in ("w-1", "w-2")] == [2, 1]
    assert (await shown(backend))["w-2"].spec.priority == 5
    await backend.cancel("w-0")
    await running(backend, "w-2")


@decides_itself
async def test_with_a_new_priority_it_is_still_the_workload_that_was_asked_for(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await backend.reprioritise("w-1", 5)
    await backend.submit(a_workload("w-1", gpus=2))
    assert (await status_of(backend, "w-1")).attempt == 1
    assert (await shown(backend))["w-1"].spec.priority == 5


@decides_itself
async def test_what_has_ended_has_no_priority_any_more(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program()))
    await finished(backend, "w-1")
    with pytest.raises(ConflictError, match="w-1"):
        await backend.reprioritise("w-1", 5)


@decides_itself
async def test_nobody_has_no_priority(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        await backend.reprioritise("nobody", 5)


@decides_itself
@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1])
async def test_a_priority_out_of_range_is_refused(backend: Backend, priority: int) -> None:
    await backend.submit(a_workload("w-1"))
    with pytest.raises(InvalidRequestError, match=str(priority)):
        await backend.reprioritise("w-1", priority)


@in_a_cluster
async def test_where_another_scheduler_decides_queues_and_priorities_are_not_ours_to_set(backend: Backend) -> None:
    await backend.submit(a_workload("w-1"))
    await until(backend, lambda workloads: "w-1" in workloads)
    with pytest.raises(UnsupportedError):
        await backend.apply_queues(TWO)
    with pytest.raises(UnsupportedError):
        await backend.reprioritise("w-1", 5)
