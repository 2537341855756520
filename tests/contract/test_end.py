"""How Workloads end, by themselves and because somebody wants it."""

from __future__ import annotations

import psutil
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.local import LocalBackend
from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import Phase, Reason
from tests.builders import a_workload, finished, gone, log_of, phase_of, program, reports, running, said, status_of, texts, until
from tests.contract.places import on_this_machine, virtual


def lives(pid: int) -> bool:
    """Whether a process can still do something; one that only waits to be buried can't."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


IDLE = Reason(code="end.idle", message="nobody used it for an hour", facts={"idle_s": 3600})


async def test_a_program_that_ends_well_has_succeeded(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program()))
    status = await finished(backend, "w-1")
    assert status.phase is Phase.SUCCEEDED
    assert status.reason is None or status.reason.code == "end.completed"
    assert not status.ready
    assert status.started
    assert status.ended
    assert status.created <= status.started <= status.ended


async def test_an_exit_code_is_a_failure_with_its_facts(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(exit_code=3)))
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "end.exit_code"
    assert status.reason.facts["exit_code"] == 3
    assert "3" in status.reason.message


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
async def test_a_signal_is_a_failure_with_its_name(backend: Backend, name: str) -> None:
    await backend.submit(a_workload("w-1", command=program(signal=name)))
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "end.signal"
    assert status.reason.facts["signal"] == name
    assert name in status.reason.message


async def test_the_end_is_reported_in_the_log(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(exit_code=3)))
    (end,) = reports(await log_of(backend, "w-1", follow=True), "end")
    assert (end["code"], end["exit_code"], end["signal"]) == ("end.exit_code", 3, None)


async def test_what_is_cancelled_while_it_waits_ends_at_once(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=2))
    await backend.cancel("w-2")
    status = await finished(backend, "w-2")
    assert status.phase is Phase.CANCELLED
    assert status.position is None
    assert status.started is None
    assert status.ended
    assert status.reason
    assert status.reason.code == "end.cancelled"
    assert await phase_of(backend, "w-1") is Phase.RUNNING


async def test_what_is_cancelled_while_it_runs_ends_as_cancelled(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await said(backend, "w-1", "hello")
    await backend.cancel("w-1")
    status = await finished(backend, "w-1")
    assert status.phase is Phase.CANCELLED
    assert status.reason
    assert status.reason.code == "end.cancelled"
    (end,) = reports(await log_of(backend, "w-1"), "end")
    assert (end["code"], end["signal"]) == ("end.cancelled", "SIGTERM")


async def test_what_is_cancelled_right_after_its_submission_ends_as_cancelled(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await backend.cancel("w-1")
    assert (await finished(backend, "w-1")).phase is Phase.CANCELLED


async def test_cancelling_twice_is_the_same_as_once(backend: Backend, second_client: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await backend.cancel("w-1")
    await second_client.cancel("w-1", reason=IDLE)
    status = await finished(backend, "w-1")
    assert status.phase is Phase.CANCELLED
    assert status.attempt == 1


async def test_the_first_reason_for_an_end_stays(backend: Backend, second_client: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(seconds=600, ignores_term=True)))
    await said(backend, "w-1", "hello")
    await backend.cancel("w-1", grace_s=1, reason=IDLE)
    await second_client.cancel("w-1", grace_s=600)
    status = await finished(backend, "w-1")
    assert status.reason
    assert status.reason.code == IDLE.code


async def test_cancelling_what_has_ended_changes_nothing(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program()))
    before = await finished(backend, "w-1")
    await backend.cancel("w-1")
    assert await status_of(backend, "w-1") == before


async def test_nothing_of_that_name_can_be_cancelled(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        await backend.cancel("nobody")


@pytest.mark.parametrize("gpus_taken", [0, 2], ids=["running", "queued"])
async def test_the_reason_of_an_end_decides_its_phase(backend: Backend, gpus_taken: int) -> None:
    await backend.submit(a_workload("w-0", gpus=gpus_taken))
    await running(backend, "w-0")
    await backend.submit(a_workload("w-1", gpus=2))
    if not gpus_taken:
        await running(backend, "w-1")
    await backend.cancel("w-1", reason=IDLE)
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert (status.reason.code, status.reason.message) == (IDLE.code, IDLE.message)
    assert status.reason.facts["idle_s"] == 3600


async def test_a_program_that_ignores_term_is_killed_after_the_grace(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2, grace_s=600, command=program(seconds=600, ignores_term=True)))
    await said(backend, "w-1", "hello")
    await backend.cancel("w-1", grace_s=0.3)
    assert (await finished(backend, "w-1")).phase is Phase.CANCELLED
    if not isinstance(backend, (MemoryBackend, LocalBackend)):
        return  # a shorter grace than the spec's is only to be had by deleting the pod, and its log goes with it
    (end,) = reports(await log_of(backend, "w-1"), "end")
    assert end["signal"] == "SIGKILL"


async def test_the_grace_is_the_specs_where_none_is_given(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", grace_s=0.3, command=program(seconds=600, ignores_term=True)))
    await said(backend, "w-1", "hello")
    await backend.cancel("w-1")
    assert (await finished(backend, "w-1")).phase is Phase.CANCELLED


async def test_until_the_last_process_is_gone_it_is_stopping_and_keeps_its_devices(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2, command=program(seconds=600, ignores_term=True)))
    await said(backend, "w-1", "hello")
    await backend.submit(a_workload("w-2", gpus=2))
    await running(backend, "w-1")
    await backend.cancel("w-1", grace_s=600)
    status = await until(backend, lambda workloads: (s := workloads["w-1"].status).reason and s)
    assert status.phase is Phase.RUNNING
    assert status.reason
    assert status.reason.code == "end.stopping"
    assert status.ended is None
    assert await phase_of(backend, "w-2") is Phase.QUEUED
    place = await backend.describe()
    assert place.free is None or place.free["nvidia.com/gpu"] == 0


async def test_what_runs_longer_than_its_limit_is_ended(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", max_runtime_s=0.5))
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "end.max_runtime"


async def test_what_ends_within_its_limit_is_left_alone(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", max_runtime_s=60, command=program()))
    assert (await finished(backend, "w-1")).phase is Phase.SUCCEEDED


async def test_a_story_is_forgotten_after_its_time(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", ttl_s=0.2, command=program()))
    await gone(backend, "w-1")
    with pytest.raises(NotFoundError):
        await backend.cancel("w-1")
    with pytest.raises(NotFoundError):
        await log_of(backend, "w-1")


async def test_a_forgotten_id_may_be_used_again(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", ttl_s=0.2, command=program()))
    await gone(backend, "w-1")
    await backend.submit(a_workload("w-1", command=program(("again",))))
    await finished(backend, "w-1")
    assert await said(backend, "w-1", "again")


@on_this_machine
@pytest.mark.parametrize("how", ["by itself", "cancelled", "its runner was killed"])
async def test_when_it_has_ended_no_process_of_it_is_left(backend: Backend, how: str) -> None:
    stays = "sleep 0.1" if how == "by itself" else "sleep 600"
    command = ("sh", "-c", f"setsid sleep 600 >/dev/null 2>&1 & echo $!; echo up; {stays}")
    await backend.submit(a_workload("w-1", gpus=2, command=command))
    await said(backend, "w-1", "up")
    lines = await log_of(backend, "w-1")
    (started,) = reports(lines, "started")
    program, runaway = started["pid"], int(texts(lines)[0])
    if how == "cancelled":
        await backend.cancel("w-1")
    elif how == "its runner was killed":
        runner = psutil.Process(program).parent()
        assert runner
        runner.kill()
    status = await finished(backend, "w-1")
    assert not lives(program)
    assert not lives(runaway)
    assert (await backend.describe()).free == {"nvidia.com/gpu": 2}
    expected = {"by itself": Phase.SUCCEEDED, "cancelled": Phase.CANCELLED, "its runner was killed": Phase.FAILED}
    assert status.phase is expected[how]


@virtual
async def test_the_grace_ends_at_its_very_moment(backend: MemoryBackend) -> None:
    await backend.submit(a_workload("w-1", grace_s=7, command=program(seconds=600, ignores_term=True)))
    await running(backend, "w-1")
    await backend.cancel("w-1")
    cancelled = backend.now
    status = await finished(backend, "w-1")
    assert status.ended
    assert (status.ended - cancelled).total_seconds() == 7


@virtual
async def test_a_limit_is_met_at_its_very_moment(backend: MemoryBackend) -> None:
    await backend.submit(a_workload("w-1", max_runtime_s=90))
    status = await finished(backend, "w-1")
    assert status.ended
    assert status.started
    assert (status.ended - status.started).total_seconds() == 90
