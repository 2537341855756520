"""What attempts used: written when one ends, kept long after its story is forgotten."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from jupyter_gpu.backends.local import rows
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.state import AttemptFolder, read_object
from jupyter_gpu.schema import Kind, Phase, Usage

KEPT_S = 400 * 86_400.0
"""So that a year can be looked back on."""

_COLUMNS = (
    "id, attempt, name, owner, queue, kind, priority, resource, gpus, admitted, ended, phase, device_s, measured_device_s, "
    "idle_device_s, cpu_s, peak_memory_bytes"
)
_MEASURED = ("measured_device_s", "idle_device_s", "cpu_s", "peak_memory_bytes")


def usage(site: Site, since: datetime | None, moment: Moment) -> tuple[Usage, ...]:
    """Return what attempts used that held something after ``since``, the running ones up to now, oldest first."""
    after = since.timestamp() if since else 0.0
    with site.store.snapshot():  # what ends meanwhile is in one of them
        over = site.store.rows(f"SELECT {_COLUMNS} FROM usage WHERE ended >= ?", (after,))
        active = rows.active(site.store)
    found = [*map(_shown, over), *(_so_far(site, row, moment) for row in active)]
    return tuple(sorted(found, key=lambda one: one.started))


def note(connection: sqlite3.Connection, row: Row, folder: AttemptFolder, phase: Phase, ended: float, held_s: float) -> None:
    """Write what an attempt used that has ended; one that never had anything used nothing.

    Args:
        connection: of a transaction.
        row: the attempt.
        folder: its folder, with what its runner measured.
        phase: how it ended.
        ended: when, in seconds since 1970.
        held_s: how long it held what it had.
    """
    if row.admitted is None:
        return
    times = (row.admitted, max(ended, row.admitted), phase.value, row.gpus * held_s)
    values = (*_who(row), *times, *measured(folder).values())
    connection.execute(
        f"INSERT OR REPLACE INTO usage (sequence, {_COLUMNS}) VALUES ({', '.join('?' * (len(values) + 1))})",
        (row.sequence, *values),
    )


def forget(connection: sqlite3.Connection, moment: Moment) -> None:
    """Remove what is too old."""
    connection.execute("DELETE FROM usage WHERE ended < ?", (moment.wall_s - KEPT_S,))


def held_s(row: Row, ended: float, moment: Moment) -> float:
    """Return how long an attempt held what it had, if it ended at ``ended`` (seconds since 1970); no set clock changes much.

    Of one that the end of a boot cut off only the wall clock tells.
    """
    if row.admitted is None or row.admitted_boot_s is None:
        return 0.0
    if row.boot_id != moment.boot_id:
        return max(0.0, ended - row.admitted)
    elapsed = max(0.0, moment.boot_s - row.admitted_boot_s)
    return elapsed - min(max(0.0, moment.wall_s - ended), elapsed)


def measured(folder: AttemptFolder) -> Mapping[str, float]:
    """Return what the runner measured; zeros where it did not."""
    found = read_object(folder.usage) or {}
    return {name: _number(found.get(name)) for name in _MEASURED}


def _so_far(site: Site, row: Row, moment: Moment) -> Usage:
    told = measured(site.state.attempt(row.id, row.attempt))
    return _shown((*_who(row), row.admitted, None, row.phase, row.gpus * held_s(row, moment.wall_s, moment), *told.values()))


def _who(row: Row) -> tuple[str | int, ...]:
    return (row.id, row.attempt, row.name, row.owner, row.queue, row.kind, row.priority, row.resource, row.gpus)


def _shown(columns: tuple[Any, ...]) -> Usage:
    id, attempt, name, owner, queue, kind, priority, resource, gpus, admitted, ended, phase, *seconds, peak = columns
    device_s, measured_device_s, idle_device_s, cpu_s = seconds
    return Usage(
        id=id,
        attempt=attempt,
        name=name,
        owner=owner,
        queue=queue,
        kind=Kind(kind),
        priority=priority,
        resource=resource if gpus else "",
        gpus=gpus,
        started=datetime.fromtimestamp(admitted, UTC),
        ended=None if ended is None else datetime.fromtimestamp(ended, UTC),
        phase=Phase(phase),
        device_seconds=device_s,
        measured_device_seconds=measured_device_s,
        idle_device_seconds=idle_device_s,
        cpu_seconds=cpu_s,
        peak_memory_bytes=int(peak),
    )


def _number(value: object) -> float:
    """Return a number that can be believed: programs of this account might write there too."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e18 else 0.0
