"""Full disks, read-only and removed folders, set clocks: nothing is believed that is not written down."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from jupyter_gpu.backends.local import LocalBackend, backend, clock, locks, settling, waiting
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.state import StateFolder
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.errors import BackendError
from jupyter_gpu.schema import Changes, LocalSettings, Phase
from tests import builders
from tests.builders import DEADLINE_S, a_workload, end_all, finished, phase_of, program, running, shown, status_of
from tests.unit.local.conftest import content_of, eventually, is_alive, now, pids_with


def _store(client: LocalBackend) -> Store:
    assert client._opened is not None
    return client._opened.site.store


@contextmanager
def _full_disk(store: Store) -> Iterator[None]:
    """Let a store have no more room, from now on."""
    store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    store.rows(f"PRAGMA max_page_count = {store.rows('PRAGMA page_count')[0][0]}")
    yield
    store.rows("PRAGMA max_page_count = 1000000")


# ---- the state folder is removed


async def test_a_client_whose_folder_was_removed_goes_on_in_a_new_one(local_backend: LocalBackend, state: StateFolder) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    await running(local_backend, "w-1")
    runner = content_of(state.attempt("w-1", 1).state)["pid"]
    shutil.rmtree(state.path)
    await local_backend.submit(a_workload("w-2", gpus=2, command=program()))
    assert state.path.stat().st_mode & 0o777 == 0o700
    assert set(await shown(local_backend)) == {"w-2"}
    assert (await finished(local_backend, "w-2")).phase is Phase.SUCCEEDED
    await eventually(lambda: not is_alive(runner))  # nobody knows of it any more
    assert not list(pids_with(f"JUPYTER_GPU_STATE={state.path}"))


async def test_a_watch_of_a_folder_that_was_removed_shows_all_of_the_new_one(
    local_backend: LocalBackend, second_local_backend: LocalBackend, state: StateFolder
) -> None:
    await local_backend.submit(a_workload("w-1"))
    await running(local_backend, "w-1")
    seen: list[Changes] = []

    async def read(client: LocalBackend) -> None:
        async with aclosing(client.watch()) as steps:
            async for step in steps:
                seen.append(step)
                if "w-2" in {one.spec.id for one in step.workloads}:
                    return

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, local_backend)
            await eventually(lambda: seen)
            shutil.rmtree(state.path)
            await second_local_backend.submit(a_workload("w-2"))
    assert [one.spec.id for one in seen[0].workloads] == ["w-1"]
    *_, anew = (step for step in seen if step.complete)
    assert "w-1" not in {one.spec.id for one in anew.workloads}


async def test_what_a_store_does_not_know_is_ended_but_for_those_it_knows(
    local_backend: LocalBackend, local_settings: LocalSettings, state: StateFolder
) -> None:
    await local_backend.submit(a_workload("w-1"))
    await running(local_backend, "w-1")
    runner = content_of(state.attempt("w-1", 1).state)["pid"]
    await local_backend.aclose()
    for path in state.path.glob("store.db*"):
        path.unlink()
    async with LocalBackend("local", local_settings) as other:
        await other.submit(a_workload("w-1", command=program(("another",), seconds=600)))
        await running(other, "w-1")
        assert not is_alive(runner)
        assert await phase_of(other, "w-1") is Phase.RUNNING
        await end_all(other)


async def test_who_computes_without_being_known_is_a_stranger(local_backend: LocalBackend, state: StateFolder) -> None:
    await local_backend.submit(a_workload("w-1"))
    await running(local_backend, "w-1")
    assert local_backend._opened is not None
    site, pid = local_backend._opened.site, content_of(state.attempt("w-1", 1).state)["pid"]
    assert site._is_ours(pid)
    assert not site._is_ours(os.getpid())
    for attempt, is_ours in ((2, False), (1, True)):
        with site.store.transaction() as connection:
            connection.execute("UPDATE workloads SET attempt = ?", (attempt,))
        assert site._is_ours(pid) is is_ours


# ---- no room, no right to write


async def test_a_submit_that_finds_no_room_is_refused_and_leaves_nothing(local_backend: LocalBackend, state: StateFolder) -> None:
    await shown(local_backend)
    with _full_disk(_store(local_backend)), pytest.raises(BackendError, match="free some space"):
        await local_backend.submit(a_workload("w-1", labels={"long": "x" * 100_000}))
    assert await shown(local_backend) == {}
    await local_backend.submit(a_workload("w-1", command=program()))
    assert (await finished(local_backend, "w-1")).attempt == 1


async def test_what_was_submitted_stays_so_although_the_step_after_it_fails(
    local_backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shown(local_backend)
    with monkeypatch.context() as patch:
        patch.setattr(waiting, "admit", _out_of_space)
        await local_backend.submit(a_workload("w-1", gpus=1, command=program()))
        with pytest.raises(BackendError, match="free some space"):
            await local_backend.tend(now())
        assert await phase_of(local_backend, "w-1") is Phase.QUEUED  # and can be looked at
    assert (await finished(local_backend, "w-1")).phase is Phase.SUCCEEDED


async def test_what_one_folder_refuses_keeps_nobody_else_from_starting(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1", gpus=1))
    await running(local_backend, "w-1")
    usual: Callable[[Site, Row, Moment], float | None] = settling.settle

    def settle(site: Site, row: Row, moment: Moment) -> float | None:
        return _out_of_space() if row.id == "w-1" else usual(site, row, moment)

    with monkeypatch.context() as patch:
        patch.setattr(settling, "settle", settle)
        await local_backend.submit(a_workload("w-2", gpus=1, command=program()))
        assert (await finished(local_backend, "w-2")).phase is Phase.SUCCEEDED


async def test_a_read_only_store_is_shown_and_says_so(local_backend: LocalBackend) -> None:
    await local_backend.submit(a_workload("w-1"))
    await running(local_backend, "w-1")
    store = _store(local_backend)
    store.rows("PRAGMA query_only = ON")
    for change in (local_backend.submit(a_workload("w-2")), local_backend.cancel("w-1"), local_backend.reprioritise("w-1", 1)):
        with pytest.raises(BackendError, match="is writable"):
            await change
    assert await phase_of(local_backend, "w-1") is Phase.RUNNING
    assert (await local_backend.describe()).holdings
    store.rows("PRAGMA query_only = OFF")


async def test_an_end_that_can_not_be_written_down_is_written_later(local_backend: LocalBackend, state: StateFolder) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    await running(local_backend, "w-1")
    store = _store(local_backend)
    store.rows("PRAGMA query_only = ON")
    os.kill(content_of(state.attempt("w-1", 1).state)["pid"], signal.SIGKILL)
    await eventually(lambda: not list(pids_with(f"JUPYTER_GPU_STATE={state.path}")))
    with pytest.raises(BackendError):
        await local_backend.tend(now())
    assert await phase_of(local_backend, "w-1") is Phase.RUNNING
    store.rows("PRAGMA query_only = OFF")
    assert (await finished(local_backend, "w-1")).phase is Phase.FAILED


async def test_a_full_disk_keeps_nobody_from_holding(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1"))
    monkeypatch.setattr(os, "pwrite", _out_of_space)
    for _ in range(2):
        async with local_backend.hold("w-1"):
            assert not locks.is_free(state.hold_lock("w-1"))
        assert locks.is_free(state.hold_lock("w-1"))


def _out_of_space(*_: object) -> float | None:
    raise OSError(28, "No space left on device")


# ---- clocks


async def test_a_clock_that_is_set_changes_nothing_that_takes_a_time(
    local_backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("ended", ttl_s=1800, command=program()))
    await finished(local_backend, "ended")
    await local_backend.submit(a_workload("runs", gpus=2, start_timeout_s=1800, max_runtime_s=3000))
    await running(local_backend, "runs")
    await local_backend.submit(a_workload("waits", gpus=2, orphan_after_s=1800))
    before = await local_backend.describe()
    for hours in (1, -1):
        for module in (clock, backend, builders):
            monkeypatch.setattr(module, "datetime", _clock_set_by(timedelta(hours=hours)))
        await local_backend.tend(datetime.now(UTC) + timedelta(hours=hours))
        assert {id: one.status.phase for id, one in (await shown(local_backend)).items()} == {
            "ended": Phase.SUCCEEDED,
            "runs": Phase.RUNNING,
            "waits": Phase.QUEUED,
        }
        after = await local_backend.describe()
        assert after.claims == before.claims
        assert after.holdings == before.holdings
        assert 0 <= after.time_s - before.time_s < 600
        (used,) = [one for one in await local_backend.usage() if one.id == "runs"]
        assert 0 <= used.device_seconds < 1200
    await local_backend.cancel("runs", grace_s=0)
    await running(local_backend, "waits")
    (used,) = [one for one in await local_backend.usage() if one.id == "runs"]
    assert 0 <= used.device_seconds < 1200
    assert used.ended
    assert used.ended >= used.started


def _clock_set_by(change: timedelta) -> type[datetime]:
    class Set(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + change

    return Set


async def test_who_waits_over_a_restart_has_waited_since_that(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    await running(local_backend, "w-1")
    await local_backend.submit(a_workload("w-2", gpus=2))
    place = await local_backend.describe()
    assert 0 <= place.time_s - place.claims[0].since_s < 60
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    place = await local_backend.describe()
    assert place.claims[0].since_s == 0
    assert (await status_of(local_backend, "w-2")).position == 1
