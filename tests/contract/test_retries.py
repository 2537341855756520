"""What a place tries again by itself."""

from __future__ import annotations

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.schema import Phase, Reason
from tests.builders import KEYS, a_kernel, a_workload, finished, log_of, program, running, shown, texts
from tests.contract.places import decides_itself, virtual


@decides_itself
@pytest.mark.parametrize("how", [{"exit_code": 3}, {"signal": "SIGKILL"}], ids=["exit code", "signal"])
async def test_what_failed_is_tried_again_as_often_as_it_asks_for(backend: Backend, how: dict) -> None:
    await backend.submit(a_workload("w-1", gpus=2, retries=2, command=program(("I tried",), **how)))
    status = await finished(backend, "w-1")
    assert (status.phase, status.attempt, status.sequence) == (Phase.FAILED, 3, status.sequence)
    assert status.reason
    assert status.reason.code in ("end.exit_code", "end.signal")
    for attempt in (1, 2, 3):
        assert texts(await log_of(backend, "w-1", attempt=attempt)) == ["I tried"]


@decides_itself
async def test_the_story_says_why_it_was_tried_again(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", retries=1, command=program(exit_code=3)))
    await finished(backend, "w-1")
    events = await backend.story("w-1")
    ends = [event for event in events if event.phase.is_final]
    assert [(end.attempt, end.phase, end.reason and end.reason.code) for end in ends] == [
        (1, Phase.FAILED, "end.exit_code"),
        (2, Phase.FAILED, "end.exit_code"),
    ]
    assert [event.phase for event in events if event.attempt == 2][:1] == [Phase.QUEUED]


@decides_itself
async def test_what_is_tried_again_keeps_its_place_in_line(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2, retries=1, command=program(exit_code=3)))
    await backend.submit(a_workload("w-2", gpus=2, command=program()))
    first, second = await finished(backend, "w-1"), await finished(backend, "w-2")
    assert first.attempt == 2
    assert first.ended
    assert second.started
    assert first.ended <= second.started


@decides_itself
async def test_what_succeeded_is_not_tried_again(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", retries=5, command=program()))
    assert ((s := await finished(backend, "w-1")).phase, s.attempt) == (Phase.SUCCEEDED, 1)


@decides_itself
async def test_what_was_cancelled_is_not_tried_again(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", retries=5))
    await running(backend, "w-1")
    await backend.cancel("w-1")
    assert ((s := await finished(backend, "w-1")).phase, s.attempt) == (Phase.CANCELLED, 1)


@decides_itself
async def test_what_somebody_ended_as_a_failure_is_not_tried_again(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", retries=5))
    await running(backend, "w-1")
    await backend.cancel("w-1", reason=Reason(code="end.idle", message="nobody used it for an hour"))
    assert ((s := await finished(backend, "w-1")).phase, s.attempt) == (Phase.FAILED, 1)


@decides_itself
async def test_what_ran_longer_than_its_limit_is_not_tried_again(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", retries=5, max_runtime_s=0.3))
    status = await finished(backend, "w-1")
    assert status.attempt == 1
    assert status.reason
    assert status.reason.code == "end.max_runtime"


@decides_itself
async def test_the_limit_is_over_all_attempts(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", retries=50, max_runtime_s=1.0, command=program(seconds=0.4, exit_code=3)))
    status = await finished(backend, "w-1")
    assert 2 <= status.attempt <= 3
    assert status.reason
    assert status.reason.code in ("end.max_runtime", "end.exit_code")  # which of the two, where the last ends just then


@decides_itself
async def test_after_the_last_attempt_it_may_be_asked_for_again_with_all_its_retries(backend: Backend) -> None:
    spec = a_workload("w-1", retries=1, command=program(exit_code=3))
    await backend.submit(spec)
    assert (await finished(backend, "w-1")).attempt == 2
    await backend.submit(spec)
    assert (await shown(backend))["w-1"].status.attempt == 3
    assert (await finished(backend, "w-1")).attempt == 4


@virtual
async def test_a_kernel_is_never_tried_again(backend: MemoryBackend) -> None:
    await backend.submit(a_kernel("k-1", retries=5, command=program(exit_code=3)), secrets=KEYS)
    assert ((s := await finished(backend, "k-1")).phase, s.attempt) == (Phase.FAILED, 1)


@virtual
async def test_a_start_that_took_too_long_is_tried_again(backend: MemoryBackend) -> None:
    await backend.submit(a_workload("w-1", retries=1, start_timeout_s=0.5))
    status = await finished(backend, "w-1")
    assert status.attempt == 2
    assert status.reason
    assert status.reason.code == "start.timeout"
