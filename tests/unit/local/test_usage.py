"""What attempts used, as the store keeps it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jupyter_gpu.backends.local import LocalBackend, accounting, clock, rows, writing
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.state import AttemptFolder, StateFolder
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.schema import Phase, Reason
from tests.builders import a_workload, finished, program, running
from tests.unit.local.conftest import content_of, eventually, now, rows_of

MEASURED = {"measured_device_s": 12.5, "idle_device_s": 2.5, "cpu_s": 3.0, "peak_memory_bytes": 4096}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let a runner's file be written by the test alone."""
    monkeypatch.setattr(AttemptFolder, "usage", property(lambda folder: folder.path / "usage-of-the-test.json"))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("is_over", [False, True])
async def test_what_the_runner_measured_is_told(local_backend: LocalBackend, state: StateFolder, is_over: bool) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    await running(local_backend, "w-1")
    state.attempt("w-1", 1).usage.write_text(json.dumps(MEASURED))
    if is_over:
        await local_backend.cancel("w-1", grace_s=0)
        await finished(local_backend, "w-1")
    (used,) = await local_backend.usage()
    told = (used.measured_device_seconds, used.idle_device_seconds, used.cpu_seconds, used.peak_memory_bytes)
    assert (told, used.idle_share) == ((12.5, 2.5, 3.0, 4096), 0.2)
    assert (used.ended is not None) is is_over


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "wrong", ["", "{", "[1]", '{"cpu_s": "many"}', '{"cpu_s": -1}', '{"cpu_s": NaN, "idle_device_s": 1e300}']
)
async def test_what_can_not_be_believed_counts_for_nothing(local_backend: LocalBackend, state: StateFolder, wrong: str) -> None:
    await local_backend.submit(a_workload("w-1"))
    await running(local_backend, "w-1")
    state.attempt("w-1", 1).usage.write_text(wrong)
    (used,) = await local_backend.usage()
    assert (used.cpu_seconds, used.idle_device_seconds, used.idle_share) == (0, 0, None)


async def test_it_outlives_its_story_for_more_than_a_year(local_backend: LocalBackend) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2, ttl_s=0, command=program()))
    await finished(local_backend, "w-1")
    await local_backend.tend(now() + timedelta(days=370))
    assert rows_of(local_backend) == {"workloads": 0, "attempts": 0, "events": 0, "usage": 1}
    (used,) = await local_backend.usage()
    assert (used.id, used.gpus, used.phase) == ("w-1", 2, Phase.SUCCEEDED)
    await local_backend.submit(a_workload("w-2", ttl_s=0, command=program()))
    await finished(local_backend, "w-2")
    await local_backend.tend(now() + timedelta(days=401))
    assert rows_of(local_backend)["usage"] == 0


async def test_an_id_that_comes_again_after_it_was_forgotten_is_counted_again(local_backend: LocalBackend) -> None:
    for times in (1, 2):
        await local_backend.submit(a_workload("w-1", ttl_s=0, command=program()))
        await finished(local_backend, "w-1")
        await local_backend.tend(now() + timedelta(seconds=2))
        assert len(await local_backend.usage()) == times


async def test_what_the_machine_cut_off_used_its_devices_until_it_was_last_heard_of(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    await running(local_backend, "w-1")
    folder = state.attempt("w-1", 1)
    os.kill(content_of(folder.state)["pid"], signal.SIGKILL)
    await eventually(lambda: not _is_held(folder))
    heard = datetime.now(UTC).timestamp() + 100
    os.utime(folder.log, (heard, heard))
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    await local_backend.tend(now() + timedelta(days=1))
    (used,) = await local_backend.usage()
    assert used.ended
    assert abs(used.ended.timestamp() - heard) < 0.001
    assert 100 * 2 <= used.device_seconds < 200 * 2


def _is_held(folder: AttemptFolder) -> bool:
    from jupyter_gpu.backends.local import locks

    return not locks.is_free(folder.lock)


def a_row(**changes: Any) -> Row:
    """Return the row of an attempt that was admitted 100 s after boot, when the wall clock showed 5000."""
    fields = dict.fromkeys(Row.__dataclass_fields__) | {"admitted": 5000.0, "admitted_boot_s": 100.0, "boot_id": "this"}
    return Row(**fields | changes)


def a_moment(wall_s: float, boot_s: float, boot_id: str = "this") -> Moment:
    return Moment(datetime.fromtimestamp(wall_s, UTC), boot_s, boot_id)


def test_the_time_that_devices_were_held_goes_by_the_clock_that_nobody_sets() -> None:
    row, hour = a_row(), 3600
    assert accounting.held_s(row, 5050, a_moment(5060, 160)) == 50
    assert accounting.held_s(row, 5050 - hour, a_moment(5060 - hour, 160)) == 50  # set back while it ran
    assert accounting.held_s(row, 5050, a_moment(5060 - hour, 160)) == 60  # set back between its end and now
    assert accounting.held_s(row, 5050, a_moment(5060 + hour, 160)) == 0  # set forward there: nothing tells that from a long wait
    assert accounting.held_s(row, 5050, a_moment(9000, 10, "another")) == 50
    assert accounting.held_s(row, 4000, a_moment(9000, 10, "another")) == 0
    assert accounting.held_s(replace(row, admitted=None), 5050, a_moment(5060, 160)) == 0


async def test_it_is_read_while_newer_code_has_the_store(local_backend: LocalBackend) -> None:
    await local_backend.submit(a_workload("w-1"))
    await running(local_backend, "w-1")
    assert local_backend._opened is not None
    store = local_backend._opened.site.store
    version = store.rows("PRAGMA user_version")[0][0]
    with store.transaction() as connection:
        connection.execute(f"PRAGMA user_version = {version + 1}")
    assert [one.id for one in await local_backend.usage()] == ["w-1"]
    assert [event.phase for event in await local_backend.story("w-1")][-1] is Phase.RUNNING
    store._connection.execute(f"PRAGMA user_version = {version}")
    assert rows.get(store, "w-1", "here").phase == Phase.RUNNING


async def test_what_ends_while_it_is_read_is_told_once(
    local_backend: LocalBackend, state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await local_backend.submit(a_workload("w-1", gpus=1))
    await running(local_backend, "w-1")
    assert local_backend._opened
    site, other = local_backend._opened.site, Store(local_backend._opened.site.store.path)
    usual, ended = rows.active, []

    def active(store: Store) -> list[Row]:
        if not ended:
            row = rows.get(other, "w-1", "local")
            with other.transaction() as connection:
                ended.append(writing.end(connection, row, Reason(code="end.cancelled", message="enough"), Moment.present()))
                accounting.note(connection, row, site.state.attempt("w-1", 1), Phase.CANCELLED, row.created + 9, 9.0)
        return usual(store)

    monkeypatch.setattr(rows, "active", active)
    told = accounting.usage(site, None, Moment.present())
    other.close()
    os.kill(content_of(state.attempt("w-1", 1).state)["pid"], signal.SIGKILL)
    assert ended
    assert [one.id for one in told] == ["w-1"]
