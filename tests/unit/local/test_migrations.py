"""What becomes of a store of an earlier version."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu.backends.local import accounting, migrations, rows, store, stories
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.state import StateFolder
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.backends.local.waiting import Line
from jupyter_gpu.errors import BackendError
from jupyter_gpu.schema import CPU, MEMORY, LocalSettings, MiB, Phase, Reason
from tests.builders import a_workload

BUSY = Reason(code="queue.busy", message="all are held").model_dump_json()
ENDED = Reason(code="end.completed", message="it ended with exit code 0").model_dump_json()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store as version 1 left it: one that waits, one that runs, one that has ended after an earlier attempt."""
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    for statement in migrations.VERSION_1.split(";"):
        connection.execute(statement)
    connection.execute("PRAGMA user_version = 1")
    _insert(connection, "waits", phase="queued", reason=BUSY, position=1, priority=3, queue="vision")
    times = {"admitted": 20.0, "admitted_boot_s": 2.0, "started": 21.0}
    _insert(connection, "runs", gpus=2, phase="running", devices='["GPU-0", "GPU-1"]', **times)
    _insert(connection, "ended", gpus=1, attempt=2, phase="succeeded", reason=ENDED, ended=31.0, expires=1e12, **times)
    earlier = "'ended', 1, 0, 'failed', NULL, '[]', 1.0, 2.0, 3.0, 4.0, 1e12"
    connection.execute(f"INSERT INTO attempts SELECT {earlier}, spec FROM workloads WHERE id = 'ended'")
    connection.commit()
    connection.close()
    return path


def _insert(connection: sqlite3.Connection, id: str, gpus: int = 1, **changes: Any) -> None:
    spec = a_workload(id, gpus=gpus, owner="me", max_runtime_s=50, queue=changes.get("queue", "default"))
    old = spec.model_dump(mode="json", exclude={"retries", "preemptible", "max_parallel"})
    del old["resources"]["product"]
    columns = {
        "id": id, "attempt": 1, "owner": "me", "content": spec.content_hash(), "kind": "batch", "name": id, "queue": "default",
        "priority": 0, "resource": "nvidia.com/gpu", "gpus": gpus, "start_timeout_s": 300.0, "grace_s": 5.0, "ttl_s": 60.0,
        "created": 10.0, "boot_id": "a boot", "unheld_boot_s": 1.0, "spec": json.dumps(old),
    } | changes  # fmt: skip
    marks = ", ".join("?" * len(columns))
    connection.execute(f"INSERT INTO workloads ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values()))


@pytest.fixture
def opened(path: Path) -> Iterator[Store]:
    opened = Store(path)
    yield opened
    opened.close()


def test_rows_get_what_is_new_from_their_specifications(opened: Store) -> None:
    row = rows.get(opened, "runs", "here")
    assert (row.cpu, row.memory, row.max_runtime_s, row.ran_s) == (100, 128 * MiB, 50, 0)
    assert (row.retries, row.failures, row.preemptible, row.product) == (0, 0, 1, None)
    (waiting,) = Line(opened).read()
    assert waiting.claim.each == {CPU: 100, MEMORY: 128 * MiB, "nvidia.com/gpu": 1}
    assert (waiting.claim.device, waiting.claim.priority, waiting.claim.max_runtime_s) == ("nvidia.com/gpu", 3, 50)
    assert rows.marks(opened)["waits"].position == 1


def test_what_lives_in_a_queue_that_was_a_mere_word_moves_into_the_default_one(opened: Store) -> None:
    workload = rows.get(opened, "waits", "here").workload(1)
    assert (workload.spec.queue, Line(opened).read()[0].claim.queue) == ("default", "default")
    asked = a_workload("waits", gpus=1, owner="me", max_runtime_s=50, queue="vision")
    assert rows.get(opened, "waits", "here").content == asked.content_hash()  # to ask for the same is no conflict


def test_stories_are_told_as_far_as_they_were_written_down(opened: Store) -> None:
    told = {id: [(event.attempt, event.phase.value) for event in stories.story(opened, id)] for id in ("waits", "runs", "ended")}
    lives = ["queued", "starting", "running"]
    assert told == {
        "waits": [(1, "queued")],
        "runs": [(1, phase) for phase in lives],
        "ended": [(1, phase) for phase in (*lives, "failed")] + [(2, phase) for phase in (*lives, "succeeded")],
    }
    assert stories.story(opened, "waits")[0].reason == Reason.model_validate_json(BUSY)


def test_what_has_ended_has_used_something(opened: Store, tmp_path: Path) -> None:
    site = Site("local", LocalSettings(), StateFolder(tmp_path), opened, None)
    used = {(one.id, one.attempt): one.device_seconds for one in accounting.usage(site, None, Moment.present()) if one.ended}
    assert used == {("ended", 1): 2.0, ("ended", 2): 11.0}


def test_a_migration_happens_as_a_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "ALTER TABLE workloads ADD COLUMN colour TEXT; CREATE TABLE workloads (id TEXT)"
    monkeypatch.setattr(store, "MIGRATIONS", (*store.MIGRATIONS[:1], broken + ";"))
    with pytest.raises(BackendError, match="already exists"):
        Store(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert "colour" not in [column[1] for column in connection.execute("PRAGMA table_info (workloads)")]
    connection.close()
    monkeypatch.undo()
    opened = Store(path)
    assert rows.get(opened, "runs", "here").phase == Phase.RUNNING
    opened.close()
