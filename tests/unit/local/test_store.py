"""The store: many writers, newer and broken files."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.local import LocalBackend, rows, store, watching
from jupyter_gpu.backends.local.store import MIGRATIONS, Store
from jupyter_gpu.errors import BackendError, ConflictError
from jupyter_gpu.schema import Changes, LocalSettings, Phase, Reason, WorkloadSpec
from tests.builders import DEADLINE_S, a_workload, finished, phase_of, program, running, shown, status_of
from tests.unit.local.conftest import eventually, run_python


@pytest.fixture
def a_store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store.db")
    yield opened
    opened.close()


def submit_some(settings: str, specs: list[str]) -> None:
    async def submit() -> None:
        async with LocalBackend("local", LocalSettings.model_validate_json(settings)) as backend:
            for spec in specs:
                await backend.submit(WorkloadSpec.model_validate_json(spec))

    anyio.run(submit)


async def test_processes_that_submit_at_once_lose_and_double_nothing(
    local_backend: Backend, local_settings: LocalSettings
) -> None:
    spawn = multiprocessing.get_context("spawn")
    shared = [a_workload(f"shared-{number}", gpus=1, command=program(())) for number in range(3)]
    processes = []
    for process in range(2):
        own = [a_workload(f"own-{process}-{number}", gpus=1, command=program(())) for number in range(3)]
        specs = [spec.model_dump_json() for pair in zip(shared, own, strict=True) for spec in pair]
        processes.append(spawn.Process(target=submit_some, args=(local_settings.model_dump_json(), specs)))
    for process in processes:
        process.start()
    for process in processes:
        await anyio.to_thread.run_sync(process.join)
        assert process.exitcode == 0
    workloads = await shown(local_backend)
    assert len(workloads) == 9
    assert len({workload.status.sequence for workload in workloads.values()}) == 9
    for id in workloads:
        assert (await finished(local_backend, id)).phase is Phase.SUCCEEDED
        assert (await status_of(local_backend, id)).attempt in (1, 2)  # a shared one may have ended before the other's wish


async def test_an_equal_request_never_becomes_a_conflict_by_its_defaults(local_backend: Backend) -> None:
    spec = a_workload("w-1")
    await local_backend.submit(spec)
    await local_backend.submit(WorkloadSpec.model_validate_json(spec.model_dump_json(exclude_defaults=True)))
    with pytest.raises(ConflictError, match="w-1"):
        await local_backend.submit(spec.model_copy(update={"priority": 1}))


async def test_sequences_are_never_used_again(local_backend: Backend) -> None:
    sequences = []
    for _ in range(3):
        await local_backend.submit(a_workload("w-1", ttl_s=0, command=program(())))
        sequences.append((await finished(local_backend, "w-1")).sequence)
        await local_backend.tend(datetime.now(UTC) + timedelta(seconds=2))
        assert await shown(local_backend) == {}
    assert sequences == sorted(set(sequences))


async def test_a_store_of_newer_code_is_shown_and_not_touched(
    local_backend: Backend, local_settings: LocalSettings, second_local_backend: Backend
) -> None:
    assert local_settings.state_folder
    await local_backend.submit(a_workload("w-1"))
    await running(local_backend, "w-1")
    path = local_settings.state_folder / "store.db"
    newer = sqlite3.connect(path, isolation_level=None)
    newer.execute("ALTER TABLE workloads ADD COLUMN colour TEXT DEFAULT 'blue'")
    newer.execute("UPDATE workloads SET spec = json_set(spec, '$.colour', 'blue', '$.resources.colour', 'red')")
    newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    try:
        for backend in (second_local_backend, local_backend):  # one opens it now, one had it open
            assert await phase_of(backend, "w-1") is Phase.RUNNING
            assert (await backend.describe()).queues
            with pytest.raises(BackendError, match="upgrade"):
                await backend.submit(a_workload("w-2"))
            with pytest.raises(BackendError, match="newer"):
                await backend.cancel("w-1")
    finally:
        newer.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        newer.close()


async def test_a_damaged_store_is_named_with_what_to_do(local_settings: LocalSettings) -> None:
    assert local_settings.state_folder
    local_settings.state_folder.mkdir(mode=0o700)
    (local_settings.state_folder / "store.db").write_bytes(b"this is no database" * 100)
    async with LocalBackend("local", local_settings) as backend:
        with pytest.raises(BackendError, match=r"store\.db is damaged .*move it away"):
            await backend.submit(a_workload("w-1"))


def test_a_full_disk_is_an_error_of_ours_and_leaves_the_store_whole(a_store: Store) -> None:
    pages = a_store.rows("PRAGMA page_count")[0][0]
    a_store.rows(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(BackendError, match="free some space"), a_store.transaction() as connection:
        connection.execute("CREATE TABLE large AS SELECT zeroblob(1000000) AS content")
    a_store.rows("PRAGMA max_page_count = 1000000")
    assert rows.marks(a_store) == {}
    with a_store.transaction() as connection:
        connection.execute("CREATE TABLE small (content)")


def test_a_file_that_is_not_to_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    with pytest.raises(BackendError, match=r"store\.db"):
        Store(tmp_path / "store.db")


def test_who_writes_at_once_waits_for_the_other(a_store: Store) -> None:
    entered, left = threading.Event(), threading.Event()

    def write() -> None:
        other = Store(a_store.path)
        with other.transaction() as connection:
            entered.set()
            connection.execute("CREATE TABLE first (content)")
            left.wait(10)
        other.close()

    thread = threading.Thread(target=write)
    thread.start()
    assert entered.wait(10)
    threading.Timer(0.1, left.set).start()
    with a_store.transaction() as connection:
        connection.execute("INSERT INTO first VALUES (1)")
    thread.join()


def test_who_stays_too_long_is_a_timeout_of_ours(a_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_BUSY_S", 0.05)
    impatient = Store(a_store.path)
    with a_store.transaction(), pytest.raises(BackendError, match="kept busy"), impatient.transaction():
        pass
    impatient.close()


def test_openers_at_once_make_one_store(tmp_path: Path) -> None:
    failures = []

    def open_it() -> None:
        try:
            Store(tmp_path / "store.db").close()
        except BackendError as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


async def test_a_second_connection_does_not_lose_the_locks_of_the_first(a_store: Store) -> None:
    with a_store.transaction() as connection:
        connection.execute("CREATE TABLE kept (content)")
    second = Store(a_store.path)
    other = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM kept').fetchall(); c.close()"
    assert await run_python(other, str(a_store.path)) == 0
    assert a_store.path.with_name("store.db-wal").exists()  # who believes to be the last one removes it, and all is lost
    second.close()


def test_the_file_is_private(a_store: Store) -> None:
    for path in (a_store.path, a_store.path.with_name("store.db-wal"), a_store.path.with_name("store.db-shm")):
        assert path.stat().st_mode & 0o777 == 0o600


def test_what_newer_code_added_is_passed_over() -> None:
    reason = rows.read(Reason, '{"code": "end.lost", "message": "m", "facts": {}, "colour": "blue"}')
    assert reason == Reason(code="end.lost", message="m")
    with pytest.raises(ValueError, match="code"):
        rows.read(Reason, '{"code": "wrong", "message": "m", "colour": "blue"}')


async def test_a_watch_outlives_trouble_and_then_shows_all(
    local_backend: Backend, local_settings: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_TROUBLE_S", 0.01)
    await local_backend.submit(a_workload("w-1"))
    await running(local_backend, "w-1")
    trouble, met = threading.Event(), threading.Event()
    usual = Store.data_version

    def data_version(opened: Store) -> int:
        if trouble.is_set():
            met.set()
            raise BackendError("trouble")
        return usual(opened)

    monkeypatch.setattr(Store, "data_version", data_version)
    seen: list[Changes] = []

    async def read(steps: AsyncIterator[Changes]) -> None:
        seen.append(await anext(steps))

    async with aclosing(local_backend.watch()) as steps:
        await anext(steps)
        trouble.set()
        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, steps)
                await eventually(met.is_set)
                await local_backend.submit(a_workload("w-2"))
                trouble.clear()
    assert seen[0].complete
    assert [workload.spec.id for workload in seen[0].workloads] == ["w-1", "w-2"]
    trouble.set()
    with pytest.raises(BackendError, match="trouble"):
        await shown(local_backend)
    trouble.clear()
