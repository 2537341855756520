"""What a place tells of itself."""

from __future__ import annotations

from jupyter_gpu.backends.base import Backend
from tests.builders import a_workload, finished, phase_of, running, until
from tests.contract.places import decides_itself

GPU = "nvidia.com/gpu"


async def test_a_place_says_who_i_am_and_which_devices_there_are(backend: Backend) -> None:
    place = await backend.describe()
    assert place.name == backend.name
    assert place.backend in ("memory", "local", "kubernetes")
    assert place.identity
    assert place.engines
    assert place.capacity[GPU] == 2
    assert place.free is None or place.free[GPU] == 2


async def test_a_place_has_a_queue_even_when_nobody_is_in_it(backend: Backend) -> None:
    queues = (await backend.describe()).queues
    assert queues
    assert all(queue.holders == queue.waiters == () for queue in queues)


async def test_devices_that_somebody_holds_are_not_free(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1))
    await running(backend, "w-1")
    place = await backend.describe()
    assert place.capacity[GPU] == 2
    assert place.free is None or place.free[GPU] == 1


async def test_a_queue_names_who_holds_devices(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1))
    await backend.submit(a_workload("w-2", gpus=1))
    await running(backend, "w-1")
    await running(backend, "w-2")
    (queue,) = [queue for queue in (await backend.describe()).queues if queue.name == "default"]
    assert set(queue.holders) == {"w-1", "w-2"}
    assert queue.waiters == ()


async def test_a_queue_names_who_waits(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=1))
    await until(backend, lambda workloads: "w-2" in workloads)
    (queue,) = [queue for queue in (await backend.describe()).queues if queue.name == "default"]
    assert queue.holders == ("w-1",)
    assert queue.waiters == ("w-2",)


@decides_itself
async def test_waiters_stand_in_the_order_of_their_start(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await backend.submit(a_workload("w-2", gpus=1))
    await backend.submit(a_workload("w-3", gpus=1))
    await backend.submit(a_workload("w-4", gpus=1, priority=1))
    (queue,) = (await backend.describe()).queues
    assert queue.waiters == ("w-4", "w-2", "w-3")


@decides_itself
async def test_a_device_names_its_holder_until_it_is_given_back(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1))
    status = await running(backend, "w-1")
    holders = {device.id: device.holder for device in (await backend.describe()).devices}
    assert len(holders) == 2
    assert {id for id, holder in holders.items() if holder == "w-1"} == set(status.replicas[0].devices)
    await backend.cancel("w-1")
    await finished(backend, "w-1")
    assert all(device.holder is None for device in (await backend.describe()).devices)


async def test_what_could_not_be_read_is_said_and_is_no_error(backend: Backend) -> None:
    for missing in (await backend.describe()).missing:
        assert missing.what
        assert missing.why


async def test_closing_a_client_ends_nothing_in_the_place(backend: Backend, second_client: Backend) -> None:
    await second_client.submit(a_workload("w-1", gpus=1))
    await running(second_client, "w-1")
    await second_client.aclose()
    assert not (await phase_of(backend, "w-1")).is_final
