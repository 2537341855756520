"""What became of Workloads, and what they used."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import Event, Phase, QueueSet
from tests.builders import a_queue, a_workload, finished, gone, program, running, said, until
from tests.contract.places import decides_itself, virtual

GPU = "nvidia.com/gpu"


def phases(events: tuple[Event, ...]) -> list[Phase]:
    """Return the phases in their order, each change once."""
    found: list[Phase] = []
    for event in events:
        if found[-1:] != [event.phase]:
            found.append(event.phase)
    return found


async def test_a_story_has_every_phase_with_its_time(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1, command=program()))
    status = await finished(backend, "w-1")
    events = await backend.story("w-1")
    assert [phase for phase in phases(events) if phase is not Phase.STARTING] == [
        Phase.QUEUED,
        Phase.RUNNING,
        Phase.SUCCEEDED,
    ]
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert {event.attempt for event in events} == {1}
    assert events[0].time >= status.created - timedelta(seconds=1)  # a cluster's times are whole seconds
    assert events[-1].time == status.ended


async def test_a_story_ends_with_the_reason_of_the_end(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(exit_code=3)))
    status = await finished(backend, "w-1")
    last = (await backend.story("w-1"))[-1]
    assert (last.phase, last.reason) == (Phase.FAILED, status.reason)


async def test_a_story_says_what_was_waited_for(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=2))
    await until(backend, lambda workloads: "w-2" in workloads and workloads["w-2"].status.reason)
    await backend.cancel("w-1")
    await running(backend, "w-2")
    waits = [event.reason.code for event in await backend.story("w-2") if event.phase is Phase.QUEUED and event.reason]
    assert waits
    assert all(code.startswith("queue.") for code in waits)


async def test_a_story_goes_on_over_attempts(backend: Backend) -> None:
    for exit_code in (3, 0):
        await backend.submit(a_workload("w-1", command=program(exit_code=exit_code)))
        await until(
            backend,
            lambda workloads, last=exit_code: workloads["w-1"].status.phase is (Phase.FAILED if last else Phase.SUCCEEDED),
        )
    events = await backend.story("w-1")
    assert [event.attempt for event in events] == sorted(event.attempt for event in events)
    ends = [(event.attempt, event.phase) for event in events if event.phase.is_final]
    assert ends == [(1, Phase.FAILED), (2, Phase.SUCCEEDED)]


@decides_itself
async def test_a_story_says_that_it_was_told_to_end(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(seconds=600, ignores_term=True)))
    await said(backend, "w-1", "hello")
    await backend.cancel("w-1", grace_s=0.3)
    await finished(backend, "w-1")
    codes = [event.reason.code for event in await backend.story("w-1") if event.reason]
    assert codes[-2:] == ["end.stopping", "end.cancelled"]


async def test_nobody_has_no_story(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        await backend.story("nobody")


async def test_where_nothing_ran_nothing_was_used(backend: Backend) -> None:
    assert await backend.usage() == ()


async def test_what_an_attempt_used_is_its_devices_times_its_time(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2, name="mine", priority=3, command=program(seconds=0.5)))
    await finished(backend, "w-1")
    (used,) = await backend.usage()
    place = await backend.describe()
    assert (used.id, used.attempt, used.name, used.owner) == ("w-1", 1, "mine", place.identity)
    assert (used.queue, used.priority, used.resource, used.gpus) == ("default", 3, GPU, 2)
    assert used.phase is Phase.SUCCEEDED
    assert used.ended
    seconds = (used.ended - used.started).total_seconds()
    assert seconds >= 0.5 or seconds == int(seconds)  # a cluster's times are whole seconds
    assert used.device_seconds == pytest.approx(2 * seconds, abs=0.1)


async def test_what_runs_has_used_its_devices_up_to_now(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1))
    await running(backend, "w-1")
    if isinstance(backend, MemoryBackend):
        backend.advance(100)
    (used,) = await backend.usage()
    assert used.ended is None
    assert used.phase is Phase.RUNNING
    assert used.gpus == 1
    assert used.device_seconds >= 0


async def test_what_has_no_devices_is_listed_too(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program()))
    await finished(backend, "w-1")
    (used,) = await backend.usage()
    assert (used.resource, used.gpus, used.device_seconds) == ("", 0, 0)


async def test_what_waits_has_used_nothing(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=2))
    await until(backend, lambda workloads: "w-2" in workloads)
    assert [used.id for used in await backend.usage()] == ["w-1"]


async def test_each_attempt_is_counted_for_itself(backend: Backend) -> None:
    for attempt, exit_code in ((1, 3), (2, 0)):
        await backend.submit(a_workload("w-1", gpus=1, command=program(exit_code=exit_code)))
        await until(
            backend,
            lambda workloads, number=attempt: (s := workloads["w-1"].status).phase.is_final and s.attempt == number,
        )
    used = await backend.usage()
    assert [(one.attempt, one.phase) for one in used] == [(1, Phase.FAILED), (2, Phase.SUCCEEDED)]


@decides_itself
async def test_the_attempts_a_place_makes_by_itself_are_counted_too(backend: Backend) -> None:
    await backend.apply_queues(QueueSet(queues=(a_queue("default", 2, within_queue="lower_priority"),)))
    await backend.submit(a_workload("low", gpus=2))
    await running(backend, "low")
    await backend.submit(a_workload("high", gpus=2, priority=5, command=program()))
    await until(backend, lambda workloads: (s := workloads["low"].status).attempt == 2 and s.phase is Phase.RUNNING)
    used = [(one.id, one.attempt, one.phase, one.ended is None) for one in await backend.usage()]
    assert used == [
        ("low", 1, Phase.FAILED, False),
        ("high", 1, Phase.SUCCEEDED, False),
        ("low", 2, Phase.RUNNING, True),
    ]


@decides_itself
async def test_what_was_used_is_known_when_the_story_is_forgotten(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1, ttl_s=0.2, command=program()))
    await gone(backend, "w-1")
    (used,) = await backend.usage()
    assert (used.id, used.phase) == ("w-1", Phase.SUCCEEDED)


async def test_what_ended_before_a_time_is_left_out(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1, command=program()))
    ended = (await finished(backend, "w-1")).ended
    assert ended
    assert [used.id for used in await backend.usage(since=ended - timedelta(seconds=60))] == ["w-1"]
    assert await backend.usage(since=ended + timedelta(seconds=60)) == ()


@virtual
async def test_usage_is_exact_where_time_is(backend: MemoryBackend) -> None:
    await backend.submit(a_workload("w-1", gpus=2, command=program(seconds=99)))
    await finished(backend, "w-1")
    (used,) = await backend.usage()
    assert used.device_seconds == 2 * 100  # one second of it, it was starting


@virtual
async def test_anothers_usage_is_not_shown(backend: MemoryBackend) -> None:
    await backend.client(owner="stranger").submit(a_workload("theirs", gpus=1))
    assert await backend.usage() == ()
