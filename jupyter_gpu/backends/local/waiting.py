"""What the store knows of the QUEUED: columns only, for a Keeper step must stay quick with a thousand of them."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.queueing import Claim
from jupyter_gpu.schema import Phase


class Waiting(NamedTuple):
    """What a Keeper step needs to know of a QUEUED Workload; its specification is not even parsed."""

    claim: Claim
    position: int | None
    reason: str | None
    orphan_after_s: float | None
    unheld_boot_s: float | None
    boot_id: str


def all_waiting(store: Store) -> list[Waiting]:
    """Return what is QUEUED."""
    found = store.rows(
        "SELECT id, sequence, resource, gpus, priority, queue, name, position, reason, orphan_after_s, unheld_boot_s, boot_id "
        "FROM workloads WHERE phase = ?",
        (Phase.QUEUED.value,),
    )
    return [Waiting(Claim(*columns[:7]), *columns[7:]) for columns in found]


def is_any(store: Store, *, gpus: int = 0) -> bool:
    """Return whether something is QUEUED that wants at least so many devices."""
    return bool(store.rows("SELECT 1 FROM workloads WHERE phase = ? AND gpus >= ? LIMIT 1", (Phase.QUEUED.value, gpus)))


def admit(connection: sqlite3.Connection, id: str, devices: str, moment: Moment) -> None:
    """Give a QUEUED Workload its devices, a list of ids as JSON; from then on it is STARTING."""
    connection.execute(
        "UPDATE workloads SET phase = ?, devices = ?, position = NULL, reason = NULL, "
        "admitted = ?, admitted_boot_s = ?, boot_id = ?, version = version + 1 WHERE id = ? AND phase = ?",
        (Phase.STARTING.value, devices, moment.wall_s, moment.boot_s, moment.boot_id, id, Phase.QUEUED.value),
    )


def note_place(connection: sqlite3.Connection, id: str, position: int, reason: str) -> None:
    """Write why a QUEUED Workload waits, a Reason as JSON, and its place in line."""
    connection.execute(
        "UPDATE workloads SET position = ?, reason = ?, version = version + 1 WHERE id = ? AND phase = ?",
        (position, reason, id, Phase.QUEUED.value),
    )


def note_holding(connection: sqlite3.Connection, id: str, boot_id: str, unheld_boot_s: float | None) -> None:
    """Write since when a QUEUED Workload has been without a client, None if it has one. Nobody is shown that."""
    connection.execute(
        "UPDATE workloads SET unheld_boot_s = ?, boot_id = ? WHERE id = ? AND phase = ?",
        (unheld_boot_s, boot_id, id, Phase.QUEUED.value),
    )
