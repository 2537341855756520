"""What the deaths of processes, at any moment, leave behind: nothing but the truth."""

# ruff: noqa: ASYNC240 - a test may look at a file

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.local import LocalBackend, clock, locks, settling
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.state import AttemptFolder, StateFolder
from jupyter_gpu.schema import LocalSettings, Phase, Reason
from tests.builders import (
    DEADLINE_S,
    KEYS,
    a_kernel,
    a_workload,
    finished,
    log_of,
    phase_of,
    program,
    reports,
    running,
    said,
    shown,
    status_of,
    texts,
    until,
)
from tests.unit.local.conftest import content_of, eventually, is_alive, pids_with, python, run_python

GRANDCHILD = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
time.sleep(600)
"""

SUBMIT = """
import os, signal, sys, anyio
from jupyter_gpu.backends.local import LocalBackend, settling, starting
from jupyter_gpu.schema import LocalSettings, WorkloadSpec

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(*{"starting": (starting, "start", die), "noting": (settling, "_change", die)}[sys.argv[1]])

async def main():
    async with LocalBackend("local", LocalSettings.model_validate_json(sys.argv[2])) as backend:
        await backend.submit(WorkloadSpec.model_validate_json(sys.argv[3]))

anyio.run(main)
"""


async def test_a_killed_runner_takes_everything_along(local_backend: Backend, first_attempt: AttemptFolder) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2, command=python(GRANDCHILD)))
    await running(local_backend, "w-1")
    grandchild = await _grandchild(local_backend)
    os.kill(content_of(first_attempt.state)["pid"], signal.SIGKILL)
    status = await finished(local_backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "end.lost"
    assert not is_alive(grandchild)
    assert (await local_backend.describe()).free == {"nvidia.com/gpu": 2}


async def test_one_that_was_cancelled_and_then_killed_counts_as_cancelled(
    local_backend: Backend, first_attempt: AttemptFolder
) -> None:
    await local_backend.submit(a_workload("w-1", command=program(seconds=600, ignores_term=True)))
    await said(local_backend, "w-1", "hello")
    await local_backend.cancel("w-1", grace_s=600)
    os.kill(content_of(first_attempt.state)["pid"], signal.SIGKILL)
    assert (await finished(local_backend, "w-1")).phase is Phase.CANCELLED


async def test_what_was_admitted_but_not_started_is_started_by_the_next_step(
    local_backend: Backend, local_settings: LocalSettings
) -> None:
    spec = a_workload("w-1", gpus=1, command=program(("hello",)))
    assert await run_python(SUBMIT, "starting", local_settings.model_dump_json(), spec.model_dump_json()) == -signal.SIGKILL
    assert await phase_of(local_backend, "w-1") is Phase.STARTING
    assert (await finished(local_backend, "w-1")).phase is Phase.SUCCEEDED
    assert texts(await log_of(local_backend, "w-1")) == ["hello"]


async def test_what_was_started_but_not_noted_is_not_started_twice(local_backend: Backend, local_settings: LocalSettings) -> None:
    spec = a_workload("w-1", command=program(("hello",)))
    assert await run_python(SUBMIT, "noting", local_settings.model_dump_json(), spec.model_dump_json()) == -signal.SIGKILL
    assert (await finished(local_backend, "w-1")).phase is Phase.SUCCEEDED
    log = await log_of(local_backend, "w-1")
    assert len(reports(log, "started")) == 1
    assert texts(log) == ["hello"]


async def test_what_was_cancelled_before_it_was_started_never_is(local_backend: Backend, local_settings: LocalSettings) -> None:
    spec = a_workload("w-1", command=program(("hello",)))
    assert await run_python(SUBMIT, "starting", local_settings.model_dump_json(), spec.model_dump_json()) == -signal.SIGKILL
    await local_backend.cancel("w-1")
    assert (await finished(local_backend, "w-1")).phase is Phase.CANCELLED
    assert await log_of(local_backend, "w-1") == []


async def test_a_restart_of_the_machine_ends_what_ran(
    local_backend: Backend, first_attempt: AttemptFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    await running(local_backend, "w-1")
    await local_backend.submit(a_workload("w-2", gpus=2, command=program()))
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    os.kill(content_of(first_attempt.state)["pid"], signal.SIGKILL)
    status = await finished(local_backend, "w-1")
    assert status.reason
    assert (status.phase, status.reason.code) == (Phase.FAILED, "end.reboot")
    assert (await finished(local_backend, "w-2")).phase is Phase.SUCCEEDED


async def test_a_runner_that_breaks_at_once_says_why(local_backend: Backend, runner_that: Callable[[str], None]) -> None:
    runner_that("raise SystemExit('no luck today')")
    await local_backend.submit(a_workload("w-1"))
    status = await finished(local_backend, "w-1")
    assert status.reason
    assert status.reason.code == "start.failed"
    assert "no luck today" in status.reason.message


async def test_a_start_that_takes_too_long_is_ended(
    local_backend: Backend, runner_that: Callable[[str], None], first_attempt: AttemptFolder
) -> None:
    runner_that("import time; time.sleep(600)")
    await local_backend.submit(a_workload("w-1", gpus=1, start_timeout_s=0.3))
    status = await finished(local_backend, "w-1")
    assert status.reason
    assert (status.phase, status.reason.code) == (Phase.FAILED, "start.timeout")
    assert locks.is_free(first_attempt.lock)


async def test_a_runner_that_does_not_heed_a_wish_is_ended(
    local_backend: Backend, runner_that: Callable[[str], None], first_attempt: AttemptFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_OVERDUE_S", 0.2)
    runner_that(
        "import json, os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "folder = json.load(open(os.environ['JUPYTER_GPU_REPLICA']))['folder']\n"
        "json.dump({'pid': os.getpid(), 'started': 1.0}, open(folder + '/new', 'w'))\n"
        "os.rename(folder + '/new', folder + '/state.json')\n"
        "time.sleep(600)\n"
    )
    await local_backend.submit(a_workload("w-1"))
    await running(local_backend, "w-1")
    await local_backend.cancel("w-1", grace_s=0)
    assert (await finished(local_backend, "w-1")).phase is Phase.CANCELLED
    assert not is_alive(content_of(first_attempt.state)["pid"])


async def test_a_second_cancel_may_shorten_the_grace_period(local_backend: Backend) -> None:
    await local_backend.submit(a_workload("w-1", command=program(seconds=600, ignores_term=True)))
    await said(local_backend, "w-1", "hello")
    await local_backend.cancel("w-1", grace_s=600)
    await local_backend.cancel("w-1", grace_s=0)
    status = await finished(local_backend, "w-1")
    assert status.phase is Phase.CANCELLED
    assert status.reason
    assert status.reason.facts["signal"] == "SIGKILL"  # the runner was there to the end, and told


async def test_an_unreadable_end_report_is_no_report(local_backend: Backend, runner_that: Callable[[str], None]) -> None:
    runner_that(
        "import json, os\n"
        "folder = json.load(open(os.environ['JUPYTER_GPU_REPLICA']))['folder']\n"
        "open(folder + '/state.json', 'w').write('{')\n"
        "open(folder + '/end.json', 'w').write('[1, 2')\n"
    )
    await local_backend.submit(a_workload("w-1"))
    status = await finished(local_backend, "w-1")
    assert status.reason
    assert status.reason.code == "end.lost"


async def test_orphans_end_by_the_boot_clock(local_backend: Backend, state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    await running(local_backend, "w-1")
    await local_backend.submit(a_kernel("k-1", gpus=2, orphan_after_s=600), secrets={"key": "k", "curve_secretkey": "s"})
    present = clock.boot_clock()
    monkeypatch.setattr(clock, "boot_clock", lambda: present + 500)
    await local_backend.tend(datetime.now(UTC))
    assert await phase_of(local_backend, "k-1") is Phase.QUEUED
    async with local_backend.hold("k-1"):
        monkeypatch.setattr(clock, "boot_clock", lambda: present + 5000)
        await local_backend.tend(datetime.now(UTC))
        assert await phase_of(local_backend, "k-1") is Phase.QUEUED
    monkeypatch.setattr(clock, "boot_clock", lambda: present + 5500)
    await local_backend.tend(datetime.now(UTC))
    assert await phase_of(local_backend, "k-1") is Phase.QUEUED
    monkeypatch.setattr(clock, "boot_clock", lambda: present + 5700)
    await local_backend.tend(datetime.now(UTC))
    status = await status_of(local_backend, "k-1")
    assert status.reason
    assert (status.phase, status.reason.code) == (Phase.FAILED, "end.orphaned")
    assert not state.attempt("k-1", 1).secrets.exists()


async def test_the_wait_for_a_client_starts_anew_after_a_restart(local_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    await running(local_backend, "w-1")
    await local_backend.submit(a_workload("w-2", gpus=2, orphan_after_s=600))
    present = clock.boot_clock()
    monkeypatch.setattr(clock, "boot_clock", lambda: present + 5000)
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    await local_backend.tend(datetime.now(UTC))
    assert await phase_of(local_backend, "w-2") is Phase.QUEUED
    monkeypatch.setattr(clock, "boot_clock", lambda: present + 5700)
    await local_backend.tend(datetime.now(UTC))
    assert await phase_of(local_backend, "w-2") is Phase.FAILED


async def test_nothing_of_an_ended_kernel_but_its_story_is_kept(
    local_backend: Backend, state: StateFolder, runtime: Path
) -> None:
    await local_backend.submit(a_kernel("k-1"), secrets={"key": "k", "curve_secretkey": "s"})
    await running(local_backend, "k-1")
    folder = state.attempt("k-1", 1)
    sockets = Path(content_of(folder.replica)["run_folder"])
    assert (sockets.is_dir(), sockets.is_relative_to(runtime), folder.secrets.exists()) == (True, True, True)
    os.kill(content_of(folder.state)["pid"], signal.SIGKILL)
    await finished(local_backend, "k-1")
    assert (sockets.exists(), folder.secrets.exists(), folder.log.exists()) == (False, False, True)


async def test_no_zombie_is_left(local_backend: Backend, first_attempt: AttemptFolder) -> None:
    await local_backend.submit(a_workload("w-1", command=program()))
    await finished(local_backend, "w-1")
    runner = content_of(first_attempt.state)["pid"]
    await eventually(lambda: not Path(f"/proc/{runner}").exists())


async def test_every_process_carries_the_markers(local_backend: Backend, state: StateFolder) -> None:
    await local_backend.submit(a_workload("w-1"))
    await said(local_backend, "w-1", "hello")
    assert len(list(pids_with(f"JUPYTER_GPU_STATE={state.path}"))) == 2  # the runner and the program
    await local_backend.cancel("w-1")
    await finished(local_backend, "w-1")
    assert not list(pids_with(f"JUPYTER_GPU_STATE={state.path}"))


async def test_a_story_and_its_folder_go_together(local_backend: Backend, state: StateFolder) -> None:
    assert await shown(local_backend) == {}
    (state.workloads / "leftover").mkdir()
    await local_backend.submit(a_workload("w-1", ttl_s=0.2, command=program()))
    assert not (state.workloads / "leftover").exists()
    await finished(local_backend, "w-1")
    await until(local_backend, lambda workloads: not workloads)
    assert not state.workload("w-1").exists()
    assert not state.trash.exists()


async def _grandchild(backend: Backend) -> int:
    with anyio.fail_after(DEADLINE_S):
        async with aclosing(backend.logs("w-1", follow=True)) as lines:
            async for line in lines:
                if line.text:
                    return int(line.text)
    raise AssertionError("it said nothing")


async def test_what_is_killed_just_before_its_runner_knows_why_counts_as_cancelled(
    local_backend: Backend, first_attempt: AttemptFolder
) -> None:
    await local_backend.submit(a_workload("w-1"))
    await said(local_backend, "w-1", "hello")
    state = content_of(first_attempt.state)
    os.kill(state["pid"], signal.SIGSTOP)
    await local_backend.cancel("w-1", grace_s=600)
    os.kill(state["program"]["pid"], signal.SIGKILL)
    os.kill(state["pid"], signal.SIGCONT)
    status = await finished(local_backend, "w-1")
    assert status.reason
    assert (status.phase, status.reason.code) == (Phase.CANCELLED, "end.cancelled")


async def test_secrets_that_a_killed_client_left_are_removed_by_the_next(
    local_backend: LocalBackend, local_settings: LocalSettings, state: StateFolder
) -> None:
    await local_backend.submit(a_kernel("waits", gpus=2), secrets=KEYS)
    await running(local_backend, "waits")
    for id in ("cancelled", "still waits"):
        await local_backend.submit(a_kernel(id, gpus=2), secrets=KEYS)
    await local_backend.cancel("cancelled")
    left = [state.attempt("cancelled", 1), state.attempt("cancelled", 2), state.attempt("still waits", 2)]
    for folder in left:  # it was killed before it removed them, or before it noted what they are for
        folder.path.mkdir(exist_ok=True)
        folder.secrets.write_text(json.dumps(KEYS))
        folder.secrets.with_name("secrets.json.1.1.new").write_text(json.dumps(KEYS))
    async with LocalBackend("local", local_settings) as another:
        await another.tend(datetime.now(UTC))
    assert not [path for folder in left for path in folder.path.glob("secrets*")]
    assert all(state.attempt(id, 1).secrets.exists() for id in ("waits", "still waits"))


async def test_why_it_must_end_is_not_forgotten_when_it_is_seen_to_run(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, site = settling.read_object, None

    def read_object(path: Path) -> dict[str, Any] | None:  # while a step looks at its folder another process cancels it
        found = usual(path)
        if site and found and path == state.attempt("w-1", 1).state and not cancelled:
            cancelled.append(found)
            settling.cancel(site, "w-1", Reason(code="end.cancelled", message="enough"), 600, Moment.present())
        return found

    cancelled: list[dict[str, Any]] = []
    monkeypatch.setattr(settling, "read_object", read_object)
    await local_backend.submit(a_workload("w-1", command=program(seconds=600, ignores_term=True)))
    assert local_backend._opened
    site = local_backend._opened.site
    status = await running(local_backend, "w-1")
    assert cancelled
    assert status.reason
    assert status.reason.code == "end.stopping"
