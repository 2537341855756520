"""Who is the Keeper, when one is started, and how it leaves."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from jupyter_gpu.backends.local import LocalBackend, holding, locks
from jupyter_gpu.backends.local.state import AttemptFolder, StateFolder
from jupyter_gpu.schema import LocalSettings, Phase
from tests.builders import MARKER, a_workload, end_all, finished, program, running, shown
from tests.unit.local.conftest import attempt_of, content_of, eventually, pids_with

KEEPER = """
import sys, anyio
from jupyter_gpu.backends.local import LocalBackend
from jupyter_gpu.schema import LocalSettings

async def main():
    async with LocalBackend("local", LocalSettings.model_validate_json(sys.argv[1])) as backend:
        async with backend.keeper_leadership() as leads:
            print("leads" if leads else "does not lead", flush=True)
            await anyio.sleep(600)

anyio.run(main)
"""


@pytest.fixture
async def backend(local_settings: LocalSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalBackend]:
    """A place that starts a Keeper which only says whether it is one."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    keeper = (sys.executable, "-c", KEEPER, "{settings}")
    async with LocalBackend("local", local_settings, keeper=keeper) as backend:
        yield backend
        await end_all(backend)
        for pid in _keepers(local_settings):
            os.kill(pid, signal.SIGKILL)


def _keepers(settings: LocalSettings) -> list[int]:
    """Return the pids of this place's Keepers; other tests on this machine have theirs."""
    return sorted(set(pids_with("does not lead")) & set(pids_with(settings.model_dump_json())))


async def test_while_all_fits_there_is_none(backend: LocalBackend, state: StateFolder, local_settings: LocalSettings) -> None:
    await backend.submit(a_workload("w-1", gpus=2, command=program()))
    await finished(backend, "w-1")
    assert not _keepers(local_settings)
    assert not state.waiting.exists()


async def test_what_must_wait_starts_one_and_only_one(
    backend: LocalBackend, state: StateFolder, local_settings: LocalSettings
) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    for number in range(3):
        await backend.submit(a_workload(f"waiting-{number}", gpus=1))
    assert await eventually(lambda: state.keeper_log.read_text()) == "leads\n"
    assert len(_keepers(local_settings)) == 1
    assert state.waiting.exists()


async def test_one_that_died_is_replaced(backend: LocalBackend, state: StateFolder, local_settings: LocalSettings) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await backend.submit(a_workload("w-2", gpus=2))
    (first,) = await eventually(lambda: _keepers(local_settings))
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: locks.is_free(state.keeper_lock))
    await backend.tend(datetime.now(UTC))
    (second,) = await eventually(lambda: _keepers(local_settings))
    assert second != first


async def test_it_is_part_of_no_workload_and_gets_no_variables_of_programs(
    backend: LocalBackend, state: StateFolder, local_settings: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_GPU_WORKLOAD", "this test runs in one")
    monkeypatch.setenv("MY_SECRET", "of this process")
    await backend.submit(a_workload("w-1", gpus=2))
    await backend.submit(a_workload("w-2", gpus=2))
    (keeper,) = await eventually(lambda: _keepers(local_settings))
    environment = await eventually(Path(f"/proc/{keeper}/environ").read_bytes)
    assert b"JUPYTER_GPU_WORKLOAD" not in environment
    assert b"MY_SECRET" not in environment
    specification = content_of(state.attempt("w-1", 1).replica)
    assert specification["after"][:2] == [sys.executable, "-c"]
    assert specification["after_variables"]["PATH"] == os.environ["PATH"]
    assert not {"JUPYTER_GPU_WORKLOAD", "MY_SECRET", MARKER[0]} & specification["after_variables"].keys()


async def test_it_is_told_the_folder_that_was_found(local_settings: LocalSettings, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(tmp_path)
    linked = local_settings.model_copy(update={"state_folder": tmp_path / "other" / "state"})
    async with LocalBackend("local", linked, keeper=("keeper", "{settings}")) as backend:
        await shown(backend)
        assert backend._opened is not None
        keeper = backend._opened.site.keeper
    assert keeper == ["keeper", local_settings.model_dump_json()]


async def test_there_is_one_while_something_runs_that_may_be_tried_again(
    backend: LocalBackend, state: StateFolder, local_settings: LocalSettings
) -> None:
    await backend.submit(a_workload("w-1", gpus=1, retries=1))
    await eventually(lambda: _keepers(local_settings))
    assert state.waiting.exists()
    os.kill(content_of(await _begun(state.attempt("w-1", 1)))["pid"], signal.SIGKILL)
    await attempt_of(backend, "w-1", 2)
    assert not state.waiting.exists()  # that was its last retry


async def _begun(folder: AttemptFolder) -> Path:
    await eventually(folder.state.exists)
    return folder.state


async def test_only_one_leads(local_settings: LocalSettings) -> None:
    async with LocalBackend("local", local_settings) as one, LocalBackend("local", local_settings) as two:
        async with one.keeper_leadership() as first, two.keeper_leadership() as second:
            assert (first, second) == (True, False)
        async with two.keeper_leadership() as again:
            assert again


async def test_it_does_not_retire_while_something_waits(local_settings: LocalSettings, state: StateFolder) -> None:
    async with LocalBackend("local", local_settings) as backend, backend.keeper_leadership() as leads:
        assert leads
        await backend.submit(a_workload("w-1", gpus=2))
        await backend.submit(a_workload("w-2", gpus=2))
        assert not await backend.retire()
        assert not locks.is_free(state.keeper_lock)
        await backend.cancel("w-2")
        assert await backend.retire()
        assert locks.is_free(state.keeper_lock)
        await end_all(backend)


async def test_between_its_last_look_and_its_end_no_submit_is_forgotten(
    backend: LocalBackend, local_settings: LocalSettings
) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    async with LocalBackend("local", local_settings) as keeper:
        for number in range(5):
            async with keeper.keeper_leadership() as leads:
                assert leads
                retired: list[bool] = []
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(backend.submit, a_workload(f"waiting-{number}", gpus=2))

                    async def retire(retired: list[bool] = retired) -> None:
                        retired.append(await keeper.retire())

                    tasks.start_soon(retire)
            if retired == [True]:
                (pid,) = await eventually(lambda: _keepers(local_settings))
                os.kill(pid, signal.SIGKILL)
                await eventually(lambda: not _keepers(local_settings))
            await backend.cancel(f"waiting-{number}")


async def test_it_is_told_when_to_look_again(local_settings: LocalSettings) -> None:
    async with LocalBackend("local", local_settings) as backend:
        now = datetime.now(UTC)
        assert await backend.tend(now) is None
        await backend.submit(a_workload("w-1", gpus=2))
        await running(backend, "w-1")
        assert await backend.tend(now) is None
        await backend.submit(a_workload("w-2", gpus=2, orphan_after_s=0.5))
        due = await backend.tend(now)
        assert due is not None
        assert now < due <= now + timedelta(seconds=1)
        await end_all(backend)


async def test_a_busy_place_is_looked_at_again_soon(local_settings: LocalSettings, state: StateFolder) -> None:
    async with LocalBackend("local", local_settings) as backend:
        assert await backend.tend(datetime.now(UTC)) is None
        lock = locks.take(state.tend_lock)
        assert lock is not None
        now = datetime.now(UTC)
        due = await backend.tend(now)
        assert due is not None
        assert due < now + timedelta(seconds=1)
        locks.release(lock)


async def test_a_submit_waits_for_the_step_of_another(local_settings: LocalSettings, state: StateFolder) -> None:
    async with LocalBackend("local", local_settings) as backend:
        await shown(backend)
        lock = locks.take(state.tend_lock)
        assert lock is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.submit, a_workload("w-1", gpus=1, command=program()))
            async with aclosing(backend.watch()) as steps:
                async for step in steps:
                    if step.workloads:
                        break
            assert step.workloads[0].status.phase is Phase.QUEUED
            locks.release(lock)
        assert (await shown(backend))["w-1"].status.phase is not Phase.QUEUED
        await finished(backend, "w-1")


async def test_own_changes_are_seen_at_once(local_settings: LocalSettings) -> None:
    patient = local_settings.model_copy(update={"poll_s": 10.0})
    async with LocalBackend("local", patient) as backend, aclosing(backend.watch()) as steps:
        await anext(steps)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(backend.submit, a_workload("w-1", gpus=1))
                step = await anext(steps)
        assert [workload.spec.id for workload in step.workloads] == ["w-1"]
        await backend.cancel("w-1", grace_s=0)
    async with LocalBackend("local", local_settings) as backend:
        await end_all(backend)


async def test_one_process_may_hold_twice(local_settings: LocalSettings, state: StateFolder) -> None:
    async with LocalBackend("local", local_settings) as one, LocalBackend("local", local_settings) as two:
        await one.submit(a_workload("w-1"))
        lock = state.hold_lock("w-1")
        async with one.hold("w-1"):
            async with two.hold("w-1"), one.hold("w-1"):
                pass
            assert not locks.is_free(lock)
        assert locks.is_free(lock)
        assert not holding._held
        await end_all(one)


def test_a_look_at_a_lock_does_not_keep_it_from_its_taker(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = locks.take(path)
    assert holder is not None
    assert (locks.is_free(path), locks.take(path, patience_s=0.01)) == (False, None)
    locks.release(holder)
    assert locks.is_free(path)
    again = locks.take(path)
    assert again is not None
    path.unlink()
    assert locks.is_free(path)  # what is held is no longer what others would find
    other = locks.take(path)
    assert other is not None
    locks.release(other)
    locks.release(again)
