"""Those who must make room for others: notice, grace, and what becomes of them."""

from __future__ import annotations

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.schema import Phase, QueueSet, Reason
from tests.builders import (
    KEYS,
    a_kernel,
    a_queue,
    a_workload,
    finished,
    log_of,
    phase_of,
    program,
    reached,
    running,
    said,
    status_of,
    texts,
    until,
)
from tests.contract.places import decides_itself

PREEMPTING = QueueSet(queues=(a_queue("default", 2, within_queue="lower_priority"),))
TAKING_BACK = QueueSet(
    queues=(a_queue("vision", 1, cohort="lab"), a_queue("speech", 1, cohort="lab", reclaim_within_cohort="any"))
)
STUBBORN = program(seconds=600, ignores_term=True)


def names_who(reason: Reason | None, **facts: object) -> None:
    assert reason
    assert "high" in reason.message
    assert {"by": "high", "by_name": "high", **facts}.items() <= reason.facts.items()


@decides_itself
async def test_who_must_yield_has_notice_and_keeps_its_devices_meanwhile(backend: Backend) -> None:
    await backend.apply_queues(PREEMPTING)
    await backend.submit(a_workload("low", gpus=2, grace_s=600, command=STUBBORN))
    await said(backend, "low", "hello")
    await backend.submit(a_workload("high", gpus=1, priority=5))
    status = await until(backend, lambda workloads: (s := workloads["low"].status).reason and s)
    assert (status.phase, status.attempt) == (Phase.RUNNING, 1)
    assert status.reason
    assert status.reason.code == "end.stopping"
    assert status.reason.facts["because"] == "end.preempted"
    names_who(status.reason)
    assert await phase_of(backend, "high") is Phase.QUEUED
    assert (await backend.describe()).free == {"nvidia.com/gpu": 0}


@decides_itself
async def test_after_the_grace_it_waits_again_in_its_place_and_then_has_another_attempt(backend: Backend) -> None:
    await backend.apply_queues(PREEMPTING)
    await backend.submit(a_workload("low", gpus=2, grace_s=0.3, command=STUBBORN))
    first = await running(backend, "low")
    await said(backend, "low", "hello")
    await backend.submit(a_workload("other", gpus=2))
    await backend.submit(a_workload("high", gpus=2, priority=5))
    await running(backend, "high")
    status = await status_of(backend, "low")
    assert (status.phase, status.attempt, status.position, status.sequence) == (Phase.QUEUED, 2, 1, first.sequence)
    assert (status.started, status.ended) == (None, None)
    assert status.reason
    assert status.reason.code.startswith("queue.")
    assert (await status_of(backend, "other")).position == 2
    await backend.cancel("high")
    assert (await running(backend, "low")).attempt == 2
    assert texts(await log_of(backend, "low", attempt=1)) == ["hello"]


@decides_itself
async def test_the_story_of_who_had_to_yield_names_who_made_it(backend: Backend) -> None:
    await backend.apply_queues(PREEMPTING)
    await backend.submit(a_workload("low", gpus=2, grace_s=0.3, command=STUBBORN))
    await said(backend, "low", "hello")
    await backend.submit(a_workload("high", gpus=2, priority=5))
    await running(backend, "high")
    events = await backend.story("low")
    (end,) = [event for event in events if event.attempt == 1 and event.phase.is_final]
    assert end.phase is Phase.FAILED
    assert end.reason
    assert end.reason.code == "end.preempted"
    me = (await backend.describe()).identity
    names_who(end.reason, by_owner=me, by_queue="default", by_priority=5, rule="in_queue")
    assert "end.stopping" in [event.reason.code for event in events if event.reason and event.attempt == 1]
    assert [event.phase for event in events if event.attempt == 2][:1] == [Phase.QUEUED]


@decides_itself
async def test_what_was_borrowed_is_given_back(backend: Backend) -> None:
    await backend.apply_queues(TAKING_BACK)
    await backend.submit(a_workload("w-1", gpus=1, queue="vision", priority=9))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=1, queue="vision", priority=9))
    await running(backend, "w-2")
    await backend.submit(a_workload("high", gpus=1, queue="speech"))
    await running(backend, "high")
    assert await phase_of(backend, "w-1") is Phase.RUNNING
    await until(backend, lambda workloads: workloads["w-2"].status.attempt == 2)
    names_who(await why_again(backend, "w-2"), by_queue="speech", by_priority=0, rule="reclaim")


@decides_itself
async def test_a_kernel_that_must_yield_has_failed_for_its_memory_is_gone(backend: Backend) -> None:
    await backend.apply_queues(PREEMPTING)
    await backend.submit(a_kernel("k-1", gpus=2, grace_s=0.3, retries=3), secrets=KEYS)
    await reached(backend, "k-1", Phase.STARTING, Phase.RUNNING)
    await backend.submit(a_workload("high", gpus=2, priority=5))
    status = await finished(backend, "k-1")
    assert (status.phase, status.attempt) == (Phase.FAILED, 1)
    assert status.reason
    assert status.reason.code == "end.preempted"
    names_who(status.reason, by_queue="default", by_priority=5, rule="in_queue")
    await running(backend, "high")


@decides_itself
async def test_who_is_not_preemptible_never_yields(backend: Backend) -> None:
    await backend.apply_queues(PREEMPTING)
    await backend.submit(a_workload("low", gpus=2, preemptible=False))
    await running(backend, "low")
    await backend.submit(a_workload("high", gpus=2, priority=5))
    assert await phase_of(backend, "high") is Phase.QUEUED
    assert (await status_of(backend, "low")).reason is None


@decides_itself
async def test_nobody_yields_where_the_queue_does_not_say_so(backend: Backend) -> None:
    await backend.submit(a_workload("low", gpus=2))
    await running(backend, "low")
    await backend.submit(a_workload("high", gpus=2, priority=5))
    assert await phase_of(backend, "high") is Phase.QUEUED
    assert (await status_of(backend, "low")).reason is None


@decides_itself
async def test_who_is_not_needed_does_not_yield(backend: Backend) -> None:
    await backend.apply_queues(PREEMPTING)
    for id in ("w-1", "w-2"):
        await backend.submit(a_workload(id, gpus=1))
        await running(backend, id)
    await backend.submit(a_workload("high", gpus=1, priority=5))
    await running(backend, "high")
    assert [(await status_of(backend, id)).attempt for id in ("w-1", "w-2")] == [1, 2]


@decides_itself
async def test_a_higher_priority_given_later_makes_others_yield_too(backend: Backend) -> None:
    await backend.apply_queues(PREEMPTING)
    await backend.submit(a_workload("low", gpus=2))
    await running(backend, "low")
    await backend.submit(a_workload("high", gpus=2))
    await backend.reprioritise("high", 5)
    await running(backend, "high")
    assert (await status_of(backend, "low")).attempt == 2


@decides_itself
async def test_who_must_yield_can_still_be_cancelled(backend: Backend) -> None:
    await backend.apply_queues(PREEMPTING)
    await backend.submit(a_workload("low", gpus=2, grace_s=600, command=STUBBORN))
    await said(backend, "low", "hello")
    await backend.submit(a_workload("high", gpus=2, priority=5))
    await until(backend, lambda workloads: workloads["low"].status.reason)
    await backend.cancel("low", grace_s=0.3)
    status = await finished(backend, "low")
    assert (status.phase, status.attempt) == (Phase.CANCELLED, 1)
    await running(backend, "high")


@decides_itself
@pytest.mark.parametrize("kind", ["batch", "kernel"])
async def test_who_had_to_yield_can_be_asked_for_again(backend: Backend, kind: str) -> None:
    await backend.apply_queues(PREEMPTING)
    secrets = KEYS if kind == "kernel" else {}
    spec = a_kernel("low", gpus=2) if kind == "kernel" else a_workload("low", gpus=2)
    await backend.submit(spec, secrets=secrets)
    await reached(backend, "low", Phase.STARTING, Phase.RUNNING)
    await backend.submit(a_workload("high", gpus=2, priority=5))
    await running(backend, "high")
    await backend.submit(spec, secrets=secrets)
    status = await status_of(backend, "low")
    assert (status.phase, status.attempt) == (Phase.QUEUED, 2)


async def why_again(backend: Backend, id: str) -> Reason | None:
    """Return why a Workload's first attempt was followed by another."""
    return next(event.reason for event in await backend.story(id) if event.phase is Phase.FAILED)
