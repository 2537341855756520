"""Several replicas: those that start and end together, and those that start as they fit."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.errors import NotFoundError, QuotaExceededError
from jupyter_gpu.schema import Phase, QueueSet, ReplicaStatus, Start, WorkloadSpec
from tests.builders import (
    a_queue,
    a_workload,
    finished,
    log_of,
    phase_of,
    program,
    reports,
    running,
    said,
    status_of,
    texts,
    until,
)
from tests.contract.places import virtual

pytestmark = virtual

PREEMPTING = QueueSet(queues=(a_queue("default", 2, within_queue="lower_priority"),))


def a_sweep(id: str = "sweep", *, replicas: int, gpus: int = 1, **changes: Any) -> WorkloadSpec:
    return a_workload(id, gpus=gpus, **{"replicas": replicas, "start": Start.AS_THEY_FIT} | changes)


async def replicas_of(backend: MemoryBackend, id: str = "sweep") -> tuple[ReplicaStatus, ...]:
    return (await status_of(backend, id)).replicas


async def phases_of(backend: MemoryBackend, id: str = "sweep") -> list[Phase]:
    return [replica.phase for replica in await replicas_of(backend, id)]


async def test_of_a_gang_one_that_fails_ends_the_others(backend: MemoryBackend) -> None:
    command = program(seconds=600, by_rank={1: {"seconds": 5, "exit_code": 3}})
    await backend.submit(a_workload("gang", gpus=1, replicas=2, command=command))
    status = await finished(backend, "gang")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert (status.reason.code, status.reason.facts["rank"]) == ("end.exit_code", 1)
    assert "replica 1" in status.reason.message
    ends = {
        line.replica: line.report["signal"] for line in await log_of(backend, "gang") if line.report and "signal" in line.report
    }
    assert ends == {0: "SIGTERM", 1: None}


async def test_of_a_gang_the_others_have_the_grace_and_the_devices_until_the_last_is_gone(backend: MemoryBackend) -> None:
    command = program(seconds=600, ignores_term=True, by_rank={1: {"seconds": 5, "exit_code": 3}})
    await backend.submit(a_workload("gang", gpus=1, replicas=2, grace_s=30, command=command))
    status = await until(backend, lambda workloads: (s := workloads["gang"].status).reason and s)
    assert status.phase is Phase.RUNNING
    assert status.reason
    assert (status.reason.code, status.reason.facts["because"]) == ("end.stopping", "end.exit_code")
    assert [replica.phase for replica in status.replicas] == [Phase.RUNNING, Phase.FAILED]
    assert (await backend.describe()).free == {"nvidia.com/gpu": 0}
    failed = backend.now
    ended = (await finished(backend, "gang")).ended
    assert ended
    assert (ended - failed).total_seconds() == 30


async def test_of_a_gang_one_may_be_done_before_the_others(backend: MemoryBackend) -> None:
    await backend.submit(a_workload("gang", gpus=1, replicas=2, command=program(seconds=50, by_rank={0: {"seconds": 5}})))
    await until(backend, lambda workloads: workloads["gang"].status.replicas[0].phase is Phase.SUCCEEDED)
    assert await phases_of(backend, "gang") == [Phase.SUCCEEDED, Phase.RUNNING]
    status = await finished(backend, "gang")
    assert status.phase is Phase.SUCCEEDED


async def test_a_gang_is_tried_again_as_a_whole(backend: MemoryBackend) -> None:
    command = program(("I tried",), seconds=600, by_rank={1: {"seconds": 5, "exit_code": 3}})
    await backend.submit(a_workload("gang", gpus=1, replicas=2, retries=1, command=command))
    assert (await finished(backend, "gang")).attempt == 2
    for attempt in (1, 2):
        assert texts(await log_of(backend, "gang", attempt=attempt)) == ["I tried", "I tried"]


async def test_a_sweep_starts_as_it_fits(backend: MemoryBackend) -> None:
    await backend.submit(a_workload("w-0", gpus=1))
    await backend.submit(a_sweep(replicas=3))
    await running(backend, "sweep")
    assert await phases_of(backend) == [Phase.RUNNING, Phase.QUEUED, Phase.QUEUED]
    waits = (await replicas_of(backend))[1].reason
    assert waits
    assert waits.code.startswith("queue.")
    status = await status_of(backend, "sweep")
    assert (status.position, status.ready) == (None, False)
    await backend.cancel("w-0")
    await until(backend, lambda workloads: workloads["sweep"].status.replicas[1].phase is Phase.RUNNING)
    assert await phases_of(backend) == [Phase.RUNNING, Phase.RUNNING, Phase.QUEUED]


async def test_each_replica_gives_its_devices_to_the_next(backend: MemoryBackend) -> None:
    await backend.submit(a_sweep(replicas=5, command=program(seconds=9)))
    status = await finished(backend, "sweep")
    assert status.phase is Phase.SUCCEEDED
    assert (backend.now - status.created).total_seconds() == 30  # three rounds of starting and running
    assert {replica.phase for replica in status.replicas} == {Phase.SUCCEEDED}


async def test_no_more_run_at_once_than_max_parallel(backend: MemoryBackend) -> None:
    await backend.submit(a_sweep(replicas=3, gpus=0, max_parallel=2, command=program(seconds=9)))
    await running(backend, "sweep")
    assert await phases_of(backend) == [Phase.RUNNING, Phase.RUNNING, Phase.QUEUED]
    status = await finished(backend, "sweep")
    assert (backend.now - status.created).total_seconds() == 20


async def test_a_sweep_goes_on_when_one_fails_and_has_failed_in_the_end(backend: MemoryBackend) -> None:
    command = program(seconds=9, by_rank={0: {"seconds": 1, "exit_code": 3}})
    await backend.submit(a_sweep(replicas=4, command=command))
    status = await finished(backend, "sweep")
    assert status.phase is Phase.FAILED
    assert [replica.phase for replica in status.replicas] == [Phase.FAILED] + 3 * [Phase.SUCCEEDED]
    assert status.reason
    assert (status.reason.code, status.reason.facts["failed"]) == ("end.exit_code", [0])
    assert "1 of 4" in status.reason.message


async def test_a_replica_of_a_sweep_is_tried_again_by_itself(backend: MemoryBackend) -> None:
    command = program(("I tried",), seconds=9, by_rank={1: {"seconds": 1, "exit_code": 3}})
    await backend.submit(a_sweep(replicas=2, retries=2, command=command))
    status = await finished(backend, "sweep")
    assert (status.phase, status.attempt) == (Phase.FAILED, 3)
    lines = [line for line in await log_of(backend, "sweep") if line.text == "I tried"]
    assert sorted((line.replica, line.attempt) for line in lines) == [(0, 1), (1, 1), (1, 2), (1, 3)]
    assert texts(await log_of(backend, "sweep", attempt=2)) == ["I tried"]


async def test_a_limit_is_each_replicas_own(backend: MemoryBackend) -> None:
    await backend.submit(a_sweep(replicas=4, max_runtime_s=60, command=program(seconds=50, by_rank={3: {"seconds": 70}})))
    status = await finished(backend, "sweep")
    assert [replica.phase for replica in status.replicas] == 3 * [Phase.SUCCEEDED] + [Phase.FAILED]
    assert status.reason
    assert status.reason.code == "end.max_runtime"


async def test_between_two_replicas_a_sweep_waits_like_others(backend: MemoryBackend) -> None:
    await backend.submit(a_sweep(replicas=2, gpus=2, command=program(seconds=9)))
    await backend.submit(a_workload("high", gpus=2, priority=5))
    await running(backend, "high")
    status = await status_of(backend, "sweep")
    assert (status.phase, status.position) == (Phase.QUEUED, 1)
    assert [replica.phase for replica in status.replicas] == [Phase.SUCCEEDED, Phase.QUEUED]
    await backend.cancel("high")
    assert (await finished(backend, "sweep")).phase is Phase.SUCCEEDED


async def test_cancelling_a_sweep_ends_all_that_runs_and_all_that_waits(backend: MemoryBackend) -> None:
    await backend.submit(a_sweep(replicas=4, command=program(seconds=600, by_rank={0: {"seconds": 1}})))
    await until(backend, lambda workloads: workloads["sweep"].status.replicas[2].phase is Phase.RUNNING)
    await backend.cancel("sweep")
    status = await finished(backend, "sweep")
    assert status.phase is Phase.CANCELLED
    assert [replica.phase for replica in status.replicas] == [Phase.SUCCEEDED] + 3 * [Phase.CANCELLED]
    assert (await backend.describe()).free == {"nvidia.com/gpu": 2}


async def test_of_a_sweep_only_those_yield_that_must(backend: MemoryBackend) -> None:
    await backend.apply_queues(PREEMPTING)
    await backend.submit(a_sweep(replicas=2, grace_s=30, command=program(seconds=600, ignores_term=True)))
    await said(backend, "sweep", "hello")
    await backend.submit(a_workload("high", gpus=1, priority=5))
    first, second = await replicas_of(backend)
    assert first.reason is None
    assert second.reason
    assert (second.reason.code, second.reason.facts["because"]) == ("end.stopping", "end.preempted")
    await running(backend, "high")
    assert await phases_of(backend) == [Phase.RUNNING, Phase.QUEUED]
    assert (await status_of(backend, "sweep")).attempt == 2
    of_one = [event for event in await backend.story("sweep") if event.reason and event.reason.facts.get("rank") == 1]
    assert [(event.attempt, event.phase, event.reason and event.reason.code) for event in of_one] == [
        (1, Phase.RUNNING, "end.stopping"),
        (1, Phase.FAILED, "end.preempted"),
    ]


async def test_a_gang_yields_as_a_whole(backend: MemoryBackend) -> None:
    await backend.apply_queues(PREEMPTING)
    await backend.submit(a_workload("gang", gpus=1, replicas=2))
    await running(backend, "gang")
    await backend.submit(a_workload("high", gpus=1, priority=5))
    await running(backend, "high")
    assert (await backend.describe()).free == {"nvidia.com/gpu": 1}
    assert await phase_of(backend, "gang") is Phase.QUEUED


async def test_of_a_sweep_one_replica_must_fit_and_of_a_gang_all(backend: MemoryBackend) -> None:
    await backend.submit(a_sweep(replicas=3))
    with pytest.raises(QuotaExceededError):
        await backend.submit(a_workload("gang", gpus=1, replicas=3))
    with pytest.raises(QuotaExceededError):
        await backend.submit(a_sweep("large", replicas=1, gpus=3))


async def test_a_sweeps_log_ends_with_its_last_replica(backend: MemoryBackend) -> None:
    await backend.submit(a_sweep(replicas=3, command=program(("one",), seconds=9)))
    lines = await log_of(backend, "sweep", follow=True)
    assert [line.replica for line in lines if line.text == "one"] == [0, 1, 2]
    assert len(reports(lines, "end")) == 3
    with pytest.raises(NotFoundError):
        await log_of(backend, "sweep", replica=3)


async def test_a_sweeps_usage_is_that_of_its_replicas_together(backend: MemoryBackend) -> None:
    await backend.submit(a_sweep(replicas=3, command=program(seconds=9)))
    await finished(backend, "sweep")
    (used,) = await backend.usage()
    assert (used.gpus, used.device_seconds, used.phase) == (3, 30, Phase.SUCCEEDED)


async def test_a_sweep_may_be_asked_for_again(backend: MemoryBackend) -> None:
    for attempt in (1, 2):
        await backend.submit(a_sweep(replicas=2, command=program()))
        assert (await finished(backend, "sweep")).attempt == attempt
        backend.advance(1)
    assert len(texts(await log_of(backend, "sweep"))) == 2
