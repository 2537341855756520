"""What became of Workloads: earlier attempts, every phase of each (triggers of the store write them), and when to forget it."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.rows import Row, read
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.schema import Event, Phase, Reason

_STORY = (
    "id, attempt, sequence, phase, reason, devices, created, admitted, started, ended, spec, expires, boot_id, expires_boot_s"
)
# by the clock that nobody can set; after a restart the wall's is all there is
_IS_OVER = "expires IS NOT NULL AND iif(boot_id = ? AND expires_boot_s IS NOT NULL, expires_boot_s <= ?, expires <= ?)"


def story(store: Store, id: str) -> tuple[Event, ...]:
    """Return every phase of every attempt at a Workload, oldest first."""
    found = store.rows("SELECT time, attempt, phase, reason FROM events WHERE id = ? ORDER BY attempt, rowid", (id,))
    return tuple(
        Event(
            time=datetime.fromtimestamp(time, UTC),
            attempt=attempt,
            phase=Phase(phase),
            reason=read(Reason, reason) if reason else None,
        )
        for time, attempt, phase, reason in found
    )


def has_attempt(store: Store, id: str, attempt: int) -> bool:
    """Return whether the story of an earlier attempt is kept."""
    return bool(store.rows("SELECT 1 FROM attempts WHERE id = ? AND attempt = ?", (id, attempt)))


def keep_attempt(connection: sqlite3.Connection, row: Row) -> None:
    """Keep an attempt that has ended as a story of its own, for as long as its Workload goes on."""
    _copy(connection, row.id)
    connection.execute("UPDATE attempts SET expires = NULL WHERE sequence = ?", (row.sequence,))


def replace(connection: sqlite3.Connection, id: str) -> None:
    """Make room for a new request of the same id: the row of the old one, if there is one, becomes a story."""
    _copy(connection, id)
    connection.execute("DELETE FROM workloads WHERE id = ?", (id,))


def _copy(connection: sqlite3.Connection, id: str) -> None:
    connection.execute(f"INSERT INTO attempts ({_STORY}) SELECT {_STORY} FROM workloads WHERE id = ?", (id,))


def is_any_over(store: Store, moment: Moment) -> bool:
    """Return whether the time of some story is over."""
    times = (moment.boot_id, moment.boot_s, moment.wall_s)
    statement = f"SELECT 1 FROM workloads WHERE {_IS_OVER} UNION ALL SELECT 1 FROM attempts WHERE {_IS_OVER} LIMIT 1"
    return bool(store.rows(statement, (*times, *times)))


def forget(connection: sqlite3.Connection, moment: Moment) -> tuple[list[str], list[tuple[str, int]]]:
    """Remove the stories whose time is over, and return which: ids, and (id, attempt) of those with a newer attempt."""
    times = (moment.boot_id, moment.boot_s, moment.wall_s)
    ids = [id for (id,) in connection.execute(f"SELECT id FROM workloads WHERE {_IS_OVER}", times)]
    for id in ids:
        for table in ("workloads", "attempts", "events"):
            connection.execute(f"DELETE FROM {table} WHERE id = ?", (id,))
    earlier: list[tuple[str, int]] = connection.execute(f"SELECT id, attempt FROM attempts WHERE {_IS_OVER}", times).fetchall()
    for one in earlier:
        for table in ("attempts", "events"):
            connection.execute(f"DELETE FROM {table} WHERE id = ? AND attempt = ?", one)
    return ids, earlier
