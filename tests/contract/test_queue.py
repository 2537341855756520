"""Who starts when, and who holds which device."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.errors import UnsupportedError
from jupyter_gpu.schema import Phase, QueueSet
from tests.builders import (
    a_queue,
    a_workload,
    end_all,
    finished,
    log_of,
    phase_of,
    program,
    running,
    said,
    shown,
    status_of,
    texts,
    until,
)
from tests.contract.places import decides_itself, on_this_machine, runs_several


async def test_a_device_has_one_holder_and_the_program_sees_its_own(backend: Backend) -> None:
    command = program(("up",), tells=("JUPYTER_GPU_DEVICES",), seconds=600)
    devices = []
    for id in ("w-1", "w-2"):
        await backend.submit(a_workload(id, gpus=1, command=command))
        status = await running(backend, id)
        await said(backend, id, "up")
        (told,) = [text for text in texts(await log_of(backend, id)) if text.startswith("JUPYTER_GPU_DEVICES=")]
        devices.append(told.partition("=")[2])
        assert status.replicas[0].devices in ((), tuple(devices[-1].split(",")))
    assert all(devices)
    assert len(set(devices)) == 2


async def test_devices_are_visible_by_the_vendors_variable(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2, command=program((), tells=("CUDA_VISIBLE_DEVICES", "JUPYTER_GPU_DEVICES"))))
    await finished(backend, "w-1")
    told = dict(text.split("=") for text in texts(await log_of(backend, "w-1")))
    assert len(told["JUPYTER_GPU_DEVICES"].split(",")) == 2
    assert told["CUDA_VISIBLE_DEVICES"] in (told["JUPYTER_GPU_DEVICES"], "")  # a device plugin sets its own


async def test_who_waits_starts_when_devices_are_given_back(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=2))
    await backend.cancel("w-1")
    assert (await running(backend, "w-2")).reason is None
    assert await phase_of(backend, "w-1") is Phase.CANCELLED


async def test_when_a_workload_has_ended_its_devices_are_free(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2, command=program(exit_code=1)))
    await finished(backend, "w-1")
    place = await backend.describe()
    assert place.free is None or place.free["nvidia.com/gpu"] == 2


async def test_who_wants_no_device_never_waits(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await backend.submit(a_workload("w-2", gpus=2))
    await backend.submit(a_workload("w-3", gpus=0))
    await running(backend, "w-3")


@decides_itself
async def test_smaller_work_overtakes_what_does_not_fit(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1))
    await backend.submit(a_workload("big", gpus=2))
    await backend.submit(a_workload("small", gpus=1))
    await running(backend, "small")
    assert (await status_of(backend, "big")).position == 1


@decides_itself
async def test_who_was_overtaken_for_long_is_overtaken_no_more(backend: Backend) -> None:
    await backend.apply_queues(QueueSet(queues=(a_queue("default", 2),), starve_after_s=0))
    await backend.submit(a_workload("w-1", gpus=1))
    await backend.submit(a_workload("big", gpus=2))
    await backend.submit(a_workload("small", gpus=1))
    status = await status_of(backend, "small")
    assert (status.phase, status.position) == (Phase.QUEUED, 2)
    assert status.reason
    assert status.reason.code == "queue.kept"
    assert status.reason.facts["for"] == "big"
    await backend.cancel("w-1")
    await running(backend, "big")
    assert await phase_of(backend, "small") is Phase.QUEUED


@decides_itself
async def test_those_who_wait_start_in_the_order_of_their_arrival(backend: Backend) -> None:
    await backend.submit(a_workload("w-0", gpus=2))
    order = ["w-3", "w-1", "w-2"]
    for id in order:
        await backend.submit(a_workload(id, gpus=2, command=program()))
    await backend.cancel("w-0")
    ends = [(await finished(backend, id)).started for id in order]
    assert ends == sorted(ends)


@decides_itself
async def test_higher_priority_starts_first(backend: Backend) -> None:
    await backend.submit(a_workload("w-0", gpus=2))
    await backend.submit(a_workload("low", gpus=2))
    await backend.submit(a_workload("high", gpus=2, priority=10))
    assert [(await status_of(backend, id)).position for id in ("high", "low")] == [1, 2]
    await backend.cancel("w-0")
    await running(backend, "high")
    assert (await status_of(backend, "low")).position == 1


@decides_itself
async def test_the_line_closes_up_when_somebody_leaves_it(backend: Backend) -> None:
    for id in ("w-0", "w-1", "w-2"):
        await backend.submit(a_workload(id, gpus=2))
    await backend.cancel("w-1")
    await until(backend, lambda workloads: workloads["w-2"].status.position == 1)


@decides_itself
async def test_the_order_of_arrival_is_a_number_given_by_the_place(backend: Backend, second_client: Backend) -> None:
    numbers = []
    for number, client in enumerate((backend, second_client, backend)):
        await client.submit(a_workload(f"w-{number}"))
        numbers.append((await status_of(backend, f"w-{number}")).sequence)
    assert numbers == sorted(set(numbers))


@runs_several
async def test_several_replicas_start_together_each_with_its_device(backend: Backend) -> None:
    await backend.submit(a_workload("w-0", gpus=1))
    await running(backend, "w-0")
    await backend.submit(a_workload("w-1", gpus=1, replicas=2))
    assert await phase_of(backend, "w-1") is Phase.QUEUED
    await backend.cancel("w-0")
    status = await running(backend, "w-1")
    assert [replica.rank for replica in status.replicas] == [0, 1]
    devices = [id for replica in status.replicas for id in replica.devices]
    assert len(set(devices)) == len(devices)


@on_this_machine
async def test_several_replicas_are_refused_where_they_can_not_be(backend: Backend) -> None:
    with pytest.raises(UnsupportedError, match="replica"):
        await backend.submit(a_workload("w-1", replicas=2))
    assert await shown(backend) == {}


async def test_many_clients_that_tend_at_once_never_give_more_than_there_is(backend: Backend, second_client: Backend) -> None:
    async def submit_and_tend(client: Backend, numbers: range) -> None:
        for number in numbers:
            await client.submit(a_workload(f"w-{number}", gpus=1))
            await client.tend(_now(client))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(submit_and_tend, backend, range(3))
        tasks.start_soon(submit_and_tend, second_client, range(3, 6))
    await until(backend, lambda workloads: sum(w.status.phase is Phase.RUNNING for w in workloads.values()) == 2)
    phases = [workload.status.phase for workload in (await shown(backend)).values()]
    assert sorted(phases) == [Phase.QUEUED] * 4 + [Phase.RUNNING] * 2
    await end_all(backend)


async def test_a_place_where_nothing_is_needs_no_tending(backend: Backend) -> None:
    assert await backend.tend(_now(backend)) is None


async def test_a_keeper_looks_again_while_somebody_waits(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await backend.submit(a_workload("w-2", gpus=2, orphan_after_s=1000))
    now = _now(backend)
    again = await backend.tend(now)
    assert again
    assert again.tzinfo
    assert again >= now


def _now(backend: Backend) -> datetime:
    return backend.now if isinstance(backend, MemoryBackend) else datetime.now(UTC)
