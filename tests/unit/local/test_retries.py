"""What follows the end of an attempt on this machine: its folder, its secrets, its log."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import aclosing

import anyio
import pytest

from jupyter_gpu.backends.local import LocalBackend, clock, retrying, settling
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.state import AttemptFolder, StateFolder
from jupyter_gpu.schema import Phase, Reason
from tests.builders import DEADLINE_S, a_workload, finished, log_of, program, running, said, status_of, texts, time_passes
from tests.unit.local.conftest import attempt_of, content_of, eventually, is_alive, now, rows_of

KEY = {"token": "b7ad3a52"}


async def _kill(folder: AttemptFolder) -> None:
    await eventually(folder.state.exists)
    os.kill(content_of(folder.state)["pid"], signal.SIGKILL)


async def test_a_killed_runner_is_followed_by_another_attempt_in_a_folder_of_its_own(
    local_backend: LocalBackend, state: StateFolder
) -> None:
    spec = a_workload("w-1", gpus=1, retries=1, secrets=("token",))
    await local_backend.submit(spec, secrets=KEY)
    before = await running(local_backend, "w-1")
    await said(local_backend, "w-1", "hello")
    first, second = state.attempt("w-1", 1), state.attempt("w-1", 2)
    runner = content_of(first.state)["pid"]
    await _kill(first)
    after = await attempt_of(local_backend, "w-1", 2)
    assert after.sequence == before.sequence
    assert not is_alive(runner)
    assert content_of(second.secrets) == KEY  # they survive to the next attempt
    assert not first.secrets.exists()
    assert content_of(second.replica)["secrets"] == str(second.secrets)
    assert content_of(second.replica)["variables"]["JUPYTER_GPU_ATTEMPT"] == "2"
    assert texts(await log_of(local_backend, "w-1", attempt=1)) == ["hello"]
    await _kill(second)
    status = await finished(local_backend, "w-1")
    assert status.reason
    assert (status.phase, status.attempt, status.reason.code) == (Phase.FAILED, 2, "end.lost")
    assert not second.secrets.exists()


async def test_a_restart_of_the_machine_is_followed_by_another_attempt(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2, retries=1))
    await running(local_backend, "w-1")
    await local_backend.submit(a_workload("w-2", gpus=2, command=program()))
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    await _kill(state.attempt("w-1", 1))
    await attempt_of(local_backend, "w-1", 2)  # it came first, so it is first again
    story = await local_backend.story("w-1")
    assert [event.reason.code for event in story if event.phase is Phase.FAILED and event.reason] == ["end.reboot"]
    await local_backend.cancel("w-1", grace_s=0)
    assert (await finished(local_backend, "w-2")).phase is Phase.SUCCEEDED


async def test_the_next_attempt_gets_what_is_left_of_the_time(local_backend: LocalBackend, state: StateFolder) -> None:
    await local_backend.submit(a_workload("w-1", retries=1, max_runtime_s=500))
    await running(local_backend, "w-1")
    assert content_of(state.attempt("w-1", 1).replica)["max_runtime_s"] == 500
    await _kill(state.attempt("w-1", 1))
    await attempt_of(local_backend, "w-1", 2)
    second = content_of(state.attempt("w-1", 2).replica)
    assert 400 < second["max_runtime_s"] < 500 and second["max_runtime_in_all_s"] == 500  # the limit that its reason tells


async def test_who_has_no_time_left_is_not_tried_again(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1", retries=5, max_runtime_s=500))
    await running(local_backend, "w-1")
    monkeypatch.setattr(settling.accounting, "held_s", lambda *_: 501.0)
    await _kill(state.attempt("w-1", 1))
    assert (await finished(local_backend, "w-1")).attempt == 1


async def test_without_its_specification_it_has_failed(local_backend: LocalBackend, state: StateFolder) -> None:
    await local_backend.submit(a_workload("w-1", retries=5))
    await running(local_backend, "w-1")
    folder = state.attempt("w-1", 1)
    await eventually(folder.state.exists)
    folder.replica.unlink()
    await _kill(folder)
    status = await finished(local_backend, "w-1")
    assert status.reason
    assert (status.attempt, status.reason.code) == (1, "end.lost")


async def test_a_step_that_was_cut_off_is_gone_over_again(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1", retries=1, secrets=("token",)), secrets=KEY)
    await running(local_backend, "w-1")
    usual, trouble = retrying.write_whole, [OSError(28, "No space left on device")]

    def write_whole(*arguments: object) -> None:
        if trouble:
            raise trouble.pop()
        usual(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(retrying, "write_whole", write_whole)
    await _kill(state.attempt("w-1", 1))
    await attempt_of(local_backend, "w-1", 2)
    assert not trouble
    assert content_of(state.attempt("w-1", 2).secrets) == KEY


async def test_who_is_cancelled_in_the_moment_of_its_end_is_not_tried_again(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1", retries=5, secrets=("token",)), secrets=KEY)
    await running(local_backend, "w-1")
    assert local_backend._opened is not None
    site, usual = local_backend._opened.site, retrying.prepare
    reason = Reason(code="end.cancelled", message="it was cancelled just now")

    def prepare(folder: StateFolder, row: Row) -> None:
        usual(folder, row)
        settling.cancel(site, "w-1", reason, None, Moment.present())

    monkeypatch.setattr(retrying, "prepare", prepare)
    await _kill(state.attempt("w-1", 1))
    status = await finished(local_backend, "w-1")
    assert (status.phase, status.attempt, status.reason) == (Phase.CANCELLED, 1, reason)
    assert not state.attempt("w-1", 2).path.exists()


async def test_who_failed_just_before_it_was_told_to_end_is_not_tried_again(
    local_backend: LocalBackend, state: StateFolder
) -> None:
    folder = state.attempt("w-1", 1)
    await local_backend.submit(a_workload("w-1", retries=5, command=program(seconds=600)))
    await said(local_backend, "w-1", "hello")
    runner = content_of(folder.state)["pid"]
    os.kill(runner, signal.SIGSTOP)
    await local_backend.cancel("w-1")
    report = {"code": "end.exit_code", "message": "it ended with exit code 3", "exit_code": 3, "signal": None, "facts": {}}
    folder.end.write_text(json.dumps(report))
    os.kill(runner, signal.SIGKILL)
    status = await finished(local_backend, "w-1")
    assert (status.phase, status.attempt, status.reason and status.reason.code) == (Phase.FAILED, 1, "end.exit_code")


async def test_who_follows_a_log_sees_the_end_of_that_attempt(local_backend: LocalBackend, state: StateFolder) -> None:
    await local_backend.submit(a_workload("w-1", gpus=1, retries=1))
    seen = []
    with anyio.fail_after(DEADLINE_S):
        async with time_passes(local_backend), aclosing(local_backend.logs("w-1", follow=True)) as lines:
            async for line in lines:
                seen.append(line)
                if line.text == "hello":
                    await _kill(state.attempt("w-1", 1))
    assert {line.attempt for line in seen} == {1}
    assert (await attempt_of(local_backend, "w-1", 2)).attempt == 2


async def test_earlier_attempts_are_forgotten_with_the_last(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1", retries=1, ttl_s=600, command=program(exit_code=1)))
    await finished(local_backend, "w-1")
    assert (await status_of(local_backend, "w-1")).attempt == 2
    present = clock.boot_clock()
    monkeypatch.setattr(clock, "boot_clock", lambda: present + 500)
    await local_backend.tend(now())
    assert texts(await log_of(local_backend, "w-1", attempt=1)) == ["hello"]
    monkeypatch.setattr(clock, "boot_clock", lambda: present + 700)
    await local_backend.tend(now())
    assert not state.workload("w-1").exists()
    assert rows_of(local_backend) == {"workloads": 0, "attempts": 0, "events": 0, "usage": 2}


async def test_a_leftover_of_an_attempt_is_in_nobodys_way(local_backend: LocalBackend, state: StateFolder) -> None:
    await local_backend.submit(a_workload("w-1", retries=1))
    await running(local_backend, "w-1")
    shutil.copytree(state.attempt("w-1", 1).path, state.attempt("w-1", 2).path)
    await _kill(state.attempt("w-1", 1))
    await attempt_of(local_backend, "w-1", 2)


async def test_when_one_has_ended_for_good_counts_its_retries_and_all_that_it_may_take_beside_its_limit(
    local_backend: LocalBackend,
) -> None:
    limits = {"retries": 2, "max_runtime_s": 1000, "start_timeout_s": 100, "grace_s": 5}
    await local_backend.submit(a_workload("w-1", gpus=2, **limits))
    await local_backend.submit(a_workload("w-2", gpus=1, **limits))
    status = await running(local_backend, "w-1")
    place = await local_backend.describe()
    (holding,), (claim,) = place.holdings, place.claims
    assert holding.ends_by_s is not None
    assert 1000 + 5 + 2 * 105 <= holding.ends_by_s - holding.since_s < 1000 + 3 * 105
    assert (holding.max_runtime_s, claim.stays_s) == (1000, 1000 + 3 * 105)
    assert status.phase is Phase.RUNNING
