"""How one that must yield on this machine is told, ended and put back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from jupyter_gpu.backends.local import LocalBackend, locks, settling, starting
from jupyter_gpu.backends.local.state import StateFolder
from jupyter_gpu.schema import NVIDIA_GPU, Phase, Preemption, QueueSet, QueueSpec, Quota
from tests.builders import a_kernel, a_workload, finished, phase_of, program, running, said, status_of, until
from tests.unit.local.conftest import attempt_of, content_of, now

PREEMPTS = QueueSet(
    queues=(
        QueueSpec(
            name="default",
            quotas={NVIDIA_GPU.resource: Quota(nominal=2)},
            preemption=Preemption.model_validate({"within_queue": "lower_priority"}),
        ),
    )
)


@pytest.fixture
async def place(local_backend: LocalBackend) -> LocalBackend:
    """A place where higher priority preempts."""
    await local_backend.apply_queues(PREEMPTS)
    return local_backend


async def test_its_runner_is_told_why(place: LocalBackend, state: StateFolder) -> None:
    await place.submit(a_workload("low", gpus=2, grace_s=600, command=program(seconds=600, ignores_term=True)))
    await said(place, "low", "hello")
    await place.submit(a_workload("high", gpus=1, priority=1))
    status = await status_of(place, "low")
    assert status.reason
    assert (status.phase, status.reason.code) == (Phase.RUNNING, "end.stopping")
    assert (status.reason.facts["because"], status.reason.facts["by"]) == ("end.preempted", "high")
    wish = content_of(state.attempt("low", 1).stop)
    assert (wish["code"], wish["grace_s"]) == ("end.preempted", 600)
    assert (await place.describe()).holdings[0].leaving


async def test_one_that_does_not_heed_that_is_killed_and_put_back(place: LocalBackend) -> None:
    await place.submit(a_workload("low", gpus=2, grace_s=0.1, command=program(seconds=600, ignores_term=True)))
    await said(place, "low", "hello")
    await place.submit(a_workload("high", gpus=2, priority=1, command=program()))
    assert (await finished(place, "high")).phase is Phase.SUCCEEDED
    assert (await attempt_of(place, "low", 2)).attempt == 2


async def test_one_whose_runner_dies_meanwhile_is_put_back_all_the_same(place: LocalBackend, state: StateFolder) -> None:
    await place.submit(a_workload("low", gpus=2, grace_s=600, command=program(seconds=600, ignores_term=True)))
    await said(place, "low", "hello")
    await place.submit(a_workload("high", gpus=2, priority=1))
    os.kill(content_of(state.attempt("low", 1).state)["pid"], signal.SIGKILL)
    await running(place, "high")
    assert await phase_of(place, "low") is Phase.QUEUED
    told = [event.reason.code for event in await place.story("low") if event.phase is Phase.FAILED and event.reason]
    assert told == ["end.preempted"]


async def test_one_that_was_admitted_but_not_started_never_is(
    place: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, disk_is_full = starting.start, [True]

    def start(*arguments: object) -> None:
        if disk_is_full:
            raise OSError(28, "No space left on device")
        usual(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(starting, "start", start)
    await place.submit(a_workload("low", gpus=2))
    assert await phase_of(place, "low") is Phase.STARTING  # what a full disk keeps from its start waits there
    await place.submit(a_workload("high", gpus=2, priority=1))
    disk_is_full.clear()
    await running(place, "high")
    status = await status_of(place, "low")
    assert (status.phase, status.attempt) == (Phase.QUEUED, 2)
    assert locks.is_free(state.attempt("low", 1).lock)


async def test_who_is_told_to_yield_and_is_not_needed_any_more_comes_back(place: LocalBackend, state: StateFolder) -> None:
    await place.submit(a_workload("low", gpus=2, grace_s=600, command=program(seconds=600, ignores_term=True)))
    await said(place, "low", "hello")
    await place.submit(a_workload("high", gpus=2, priority=1))
    await place.cancel("high")
    await place.tend(now())
    assert state.waiting.exists()  # a runner's last act brings a Keeper, although nothing is QUEUED just now
    assert not await place.retire()
    os.kill(content_of(state.attempt("low", 1).state)["program"]["pid"], signal.SIGKILL)
    await attempt_of(place, "low", 2)


async def test_who_ends_one_that_yields_ends_it_for_good(place: LocalBackend, state: StateFolder) -> None:
    await place.submit(a_workload("low", gpus=2, grace_s=600, command=program(seconds=600, ignores_term=True)))
    await said(place, "low", "hello")
    await place.submit(a_workload("high", gpus=2, priority=1))
    await place.cancel("low", grace_s=0)
    status = await finished(place, "low")
    assert status.reason
    assert (status.phase, status.attempt, status.reason.code) == (Phase.CANCELLED, 1, "end.cancelled")
    await running(place, "high")


async def test_a_kernel_that_had_to_yield_keeps_nothing(
    place: LocalBackend, state: StateFolder, runner_that: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_LATE_S", 0.1)
    runner_that("import time; time.sleep(600)")
    await place.submit(a_kernel("k-1", gpus=2, grace_s=0), secrets={"key": "k", "curve_secretkey": "s"})
    await place.submit(a_workload("high", gpus=2, priority=1))
    status = await finished(place, "k-1")
    assert status.reason
    assert (status.phase, status.reason.code, status.reason.facts["by"]) == (Phase.FAILED, "end.preempted", "high")
    assert not state.attempt("k-1", 1).secrets.exists()
    await until(place, lambda workloads: workloads["high"].status.phase is not Phase.QUEUED)
