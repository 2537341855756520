"""What only a place of virtual time can show: accounts, exact moments, and time itself."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.errors import ConflictError, NotFoundError, QuotaExceededError
from jupyter_gpu.schema import Phase, WorkloadSpec
from tests.builders import KEYS, a_kernel, a_workload, finished, log_of, phase_of, program, running, shown, status_of, texts

START = datetime(2030, 1, 1, tzinfo=UTC)
FOREVER = ("sleep", "infinity")


@pytest.fixture
def place() -> MemoryBackend:
    return MemoryBackend(gpus=2, start_s=1, now=START)


def passed(place: MemoryBackend) -> float:
    return (place.now - START).total_seconds()


async def test_time_stands_still_until_it_is_moved(place: MemoryBackend) -> None:
    await place.submit(a_workload("w-1"))
    assert await phase_of(place, "w-1") is Phase.STARTING
    place.advance(0.5)
    assert await phase_of(place, "w-1") is Phase.STARTING
    place.advance(0.5)
    assert await phase_of(place, "w-1") is Phase.RUNNING
    assert passed(place) == 1


async def test_everything_happens_on_the_way_at_its_own_time(place: MemoryBackend) -> None:
    await place.submit(a_workload("w-1", gpus=2, command=program(("one", "two"), pause_s=10, seconds=30)))
    await place.submit(a_workload("w-2", gpus=2, command=program(seconds=5)))
    place.advance(3600)
    first, second = await status_of(place, "w-1"), await status_of(place, "w-2")
    assert [line.time for line in await log_of(place, "w-1")] == [START + timedelta(seconds=s) for s in (1, 1, 11, 51)]
    assert first.ended == START + timedelta(seconds=51)
    assert second.started == START + timedelta(seconds=52)
    assert second.ended == START + timedelta(seconds=57)
    assert passed(place) == 3600


async def test_time_can_go_to_the_next_thing_that_happens(place: MemoryBackend) -> None:
    await place.submit(a_workload("w-1", ttl_s=60, command=program(seconds=5)))
    moments = []
    while (moment := place.advance_to_next()) is not None:
        moments.append((moment - START).total_seconds())
    assert moments == [1, 6, 66]  # it starts and speaks, ends, is forgotten
    assert await shown(place) == {}


async def test_tending_at_a_later_time_lets_it_pass(place: MemoryBackend) -> None:
    await place.submit(a_workload("w-1", command=program(seconds=5)))
    again = await place.tend(START + timedelta(seconds=2))
    assert again == START + timedelta(seconds=6)
    assert await place.tend(START) == again  # time never goes back
    assert passed(place) == 2


async def test_a_command_that_is_no_script_runs_until_it_is_ended(place: MemoryBackend) -> None:
    await place.submit(a_workload("w-1", command=("train", "--epochs", "3")))
    place.advance(1_000_000)
    assert await phase_of(place, "w-1") is Phase.RUNNING


async def test_a_stream_of_short_work_does_not_keep_a_large_one_waiting_for_ever(place: MemoryBackend) -> None:
    """Each may take time beside its limit, to start and to end; that is no room for others to overtake in."""
    short = {"gpus": 1, "command": program(seconds=8), "max_runtime_s": 10}
    await place.submit(a_workload("w-0", **short))
    place.advance(5)
    await place.submit(a_workload("large", gpus=2, max_runtime_s=60))
    for number in range(1, 200):
        await place.submit(a_workload(f"w-{number}", **short))
        place.advance(5)
    events = await place.story("large")
    begun = next(event.time for event in events if event.phase is Phase.STARTING)
    assert (begun - events[0].time).total_seconds() <= 600 + 10  # starve_after_s, and what runs then


async def test_when_one_has_ended_for_good_counts_the_retries_it_has_left(place: MemoryBackend) -> None:
    limits = {"max_runtime_s": 100, "start_timeout_s": 30, "grace_s": 5}
    await place.submit(a_workload("w-1", retries=2, command=program(seconds=50, exit_code=1), **limits))
    assert [one.ends_by_s for one in (await place.describe()).holdings] == [100 + 3 * 35]
    place.advance(1)
    assert [one.ends_by_s for one in (await place.describe()).holdings] == [1 + 100 + 5 + 2 * 35]
    place.advance(50)  # it fails, and starts again with what it has left
    assert [one.ends_by_s for one in (await place.describe()).holdings] == [51 + 50 + 2 * 35]


async def test_a_copy_goes_on_by_itself(place: MemoryBackend) -> None:
    await place.submit(a_workload("w-1", gpus=2, command=program(("hello",), seconds=5)))
    await place.submit(a_workload("w-2", gpus=2))
    other = place.copy()
    assert await other.describe() == await place.describe()
    other.advance(100)
    assert (await phase_of(other, "w-1"), texts(await log_of(other, "w-1"))) == (Phase.SUCCEEDED, ["hello"])
    assert await phase_of(place, "w-1") is Phase.STARTING


async def test_a_start_that_takes_too_long_is_ended() -> None:
    place = MemoryBackend(start_s=120)
    await place.submit(a_workload("w-1", gpus=2, start_timeout_s=60))
    place.advance(60)
    status = await status_of(place, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "start.timeout"
    assert (await place.describe()).free == {"nvidia.com/gpu": 2}


async def test_an_orphan_ends_at_its_very_moment(place: MemoryBackend) -> None:
    await place.submit(a_workload("taken", gpus=2, command=FOREVER))
    await place.submit(a_kernel("k-1", gpus=2, orphan_after_s=600))
    place.advance(500)
    async with place.hold("k-1"):
        place.advance(10_000)
    place.advance(599)
    assert await phase_of(place, "k-1") is Phase.QUEUED
    place.advance(1)
    assert await phase_of(place, "k-1") is Phase.FAILED


async def test_a_new_attempt_has_its_full_time_to_find_a_client(place: MemoryBackend) -> None:
    await place.submit(a_workload("taken", gpus=2, command=FOREVER))
    await place.submit(a_kernel("k-1", gpus=2, orphan_after_s=600))
    place.advance(600)
    await place.submit(a_kernel("k-1", gpus=2, orphan_after_s=600))
    place.advance(599)
    assert await phase_of(place, "k-1") is Phase.QUEUED


async def test_an_orphan_ends_while_it_runs_too(place: MemoryBackend) -> None:
    await place.submit(a_kernel("k-1", gpus=1, orphan_after_s=10, orphan_running_after_s=600, command=FOREVER))
    await running(place, "k-1")
    place.advance(300)
    async with place.hold("k-1"):
        place.advance(10_000)
    place.advance(599)
    assert await phase_of(place, "k-1") is Phase.RUNNING
    place.advance(1)
    status = await status_of(place, "k-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "end.orphaned"


async def test_a_client_that_dies_lets_go_of_all_it_holds(place: MemoryBackend) -> None:
    other = place.client()
    for id in ("w-1", "w-2"):
        await place.submit(a_workload(id))
    async with other.hold("w-1"), other.hold("w-1"), other.hold("w-2"):
        other.die()
        async with place.hold("w-1"), place.hold("w-2"):
            pass
    async with place.hold("w-1"):  # what the dead one left undone takes nothing from the living
        pass


async def test_what_a_dead_client_held_is_not_taken_from_its_next_holder(place: MemoryBackend) -> None:
    other = place.client()
    await place.submit(a_workload("w-1"))
    late = other.hold("w-1")
    await late.__aenter__()
    other.die()
    async with place.hold("w-1"):
        await late.__aexit__(None, None, None)
        with pytest.raises(ConflictError, match="client 1"):
            async with other.hold("w-1"):
                raise AssertionError("two hold it")


async def test_a_story_is_kept_for_exactly_its_time(place: MemoryBackend) -> None:
    await place.submit(a_workload("w-1", ttl_s=60, command=program()))
    await finished(place, "w-1")
    place.advance(59)
    assert "w-1" in await shown(place)
    place.advance(1)
    assert await shown(place) == {}


async def test_another_accounts_workloads_are_not_shown(place: MemoryBackend) -> None:
    stranger = place.client(owner="stranger")
    await stranger.submit(a_workload("theirs", gpus=1))
    await place.submit(a_workload("mine", gpus=1))
    assert set(await shown(place)) == {"mine"}
    assert (await stranger.describe()).identity == "stranger"
    seen = await place.describe()
    assert seen.free == {"nvidia.com/gpu": 0}
    assert {(device.holder, device.foreign) for device in seen.devices} == {("mine", None), (None, "stranger")}
    assert [queue.holders for queue in seen.queues] == [("mine",)]


async def test_another_accounts_workloads_can_not_be_touched(place: MemoryBackend) -> None:
    stranger = place.client(owner="stranger")
    await stranger.submit(a_kernel("k-1"), secrets=KEYS)
    with pytest.raises(ConflictError, match="stranger"):
        await place.submit(a_kernel("k-1"), secrets=KEYS)
    with pytest.raises(ConflictError, match="stranger"):
        await place.connection("k-1")
    with pytest.raises(NotFoundError):
        await place.cancel("k-1")
    with pytest.raises(NotFoundError):
        await log_of(place, "k-1")
    with pytest.raises(NotFoundError):
        async with place.hold("k-1"):
            raise AssertionError("it is not mine")
    await stranger.submit(a_kernel("k-1"))
    assert await phase_of(stranger, "k-1") is Phase.STARTING


async def test_another_accounts_finished_id_can_not_be_taken_over(place: MemoryBackend) -> None:
    stranger = place.client(owner="stranger")
    await stranger.submit(a_workload("w-1", command=program()))
    await finished(stranger, "w-1")
    with pytest.raises(ConflictError):
        await place.submit(a_workload("w-1"))


async def test_a_watch_is_not_woken_by_what_it_does_not_show(place: MemoryBackend) -> None:
    stranger = place.client(owner="stranger")
    async with aclosing(place.watch()) as steps:
        await anext(steps)
        await stranger.submit(a_workload("theirs"))
        await place.submit(a_workload("mine"))
        assert [workload.spec.id for workload in (await anext(steps)).workloads] == ["mine"]


async def test_a_place_may_have_several_kinds_of_devices() -> None:
    place = MemoryBackend(gpus={"nvidia.com/gpu": 1, "amd.com/gpu": 4})
    assert (await place.describe()).capacity == {"nvidia.com/gpu": 1, "amd.com/gpu": 4}
    assert len({device.id for device in (await place.describe()).devices}) == 5


async def test_variables_of_the_environment_reach_a_script(place: MemoryBackend) -> None:
    spec = a_workload("w-1", command=program((), tells=("COLOUR", "OTHER")))
    environment = spec.environment.model_copy(update={"variables": {"COLOUR": "blue"}})
    await place.submit(spec.model_copy(update={"environment": environment}))
    await finished(place, "w-1")
    assert texts(await log_of(place, "w-1")) == ["COLOUR=blue", "OTHER="]


async def test_a_model_of_device_can_be_asked_for() -> None:
    place = MemoryBackend(models={"NVIDIA A100": 1, "NVIDIA H100": 1})
    await place.submit(a_product("w-1", "h100"))
    await place.submit(a_product("w-2", "H100"))
    await place.submit(a_product("w-3", "A100"))
    assert await phase_of(place, "w-2") is Phase.QUEUED
    devices = {device.holder: device.model for device in (await place.describe()).devices}
    assert devices == {"w-1": "NVIDIA H100", "w-3": "NVIDIA A100"}
    with pytest.raises(QuotaExceededError, match="V100"):
        await place.submit(a_product("w-4", "V100"))


async def test_who_takes_any_model_leaves_a_model_to_who_needs_it() -> None:
    place = MemoryBackend(models={"NVIDIA A100": 1, "NVIDIA H100": 1})
    await place.submit(a_workload("w-0", gpus=2))
    await place.submit(a_workload("any", gpus=1))
    await place.submit(a_product("w-1", "A100"))
    await place.cancel("w-0")
    devices = {device.holder: device.model for device in (await place.describe()).devices}
    assert devices == {"any": "NVIDIA H100", "w-1": "NVIDIA A100"}


def a_product(id: str, product: str) -> WorkloadSpec:
    spec = a_workload(id, gpus=1)
    return spec.model_copy(update={"resources": spec.resources.model_copy(update={"product": product})})
