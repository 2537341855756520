"""What the store knows of the QUEUED: columns only, for a Keeper step must stay quick with a thousand of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.schema import CPU, MEMORY, Amounts, Claim, Kind, Phase

_QUEUED = f"phase = '{Phase.QUEUED}'"
_COLUMNS = (
    "sequence, version, id, queue, priority, cpu, memory, resource, gpus, product, queued_boot_s, max_runtime_s - ran_s, "
    f"start_timeout_s, grace_s, CASE kind WHEN '{Kind.KERNEL}' THEN 0 ELSE max(0, retries - failures) END, name, owner, "
    "reason, called, boot_id"
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a Keeper step needs to know of a QUEUED Workload; its specification is not even parsed."""

    claim: Claim
    reason: str | None
    """Why it waits, a Reason as JSON."""
    boot_id: str


class Line:
    """The QUEUED of a store. What a look before this one saw is read again only where it changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[int, int], Waiting] = {}
        self._sizes: dict[tuple[int, int, str, int], Amounts] = {}

    def read(self) -> list[Waiting]:
        """Return all of them, in no order."""
        marks = self._store.rows(f"SELECT sequence, version FROM workloads WHERE {_QUEUED}")
        known = {mark: self._known[mark] for mark in marks if mark in self._known}
        if len(known) < len(marks):
            news = json.dumps([sequence for sequence, version in marks if (sequence, version) not in known])
            known |= self._find(f"sequence IN (SELECT value FROM json_each(?)) AND {_QUEUED}", news)
        self._known = known
        return list(known.values())

    def _find(self, condition: str, *parameters: str) -> dict[tuple[int, int], Waiting]:
        found = self._store.rows(f"SELECT {_COLUMNS} FROM workloads WHERE {condition}", parameters)
        return {(columns[0], columns[1]): self._waiting(*columns) for columns in found}

    def _waiting(self, *columns: Any) -> Waiting:
        sequence, _, id, queue, priority, *size, product, since_s, left_s = columns[:12]
        start_timeout_s, grace_s, retries, name, owner, reason, called, boot_id = columns[12:]
        claim = Claim(
            id=id,
            sequence=sequence,
            queue=queue,
            priority=priority,
            each=self._size(*size),
            device=size[2] if size[3] else None,
            product=product,
            since_s=since_s,
            max_runtime_s=left_s,
            start_timeout_s=start_timeout_s,
            grace_s=grace_s,
            retries=retries,
            called=bool(called),
            name=name,
            owner=owner,
        )
        return Waiting(claim, reason, boot_id)

    def _size(self, *size: Any) -> Amounts:
        if size not in self._sizes:
            self._sizes[size] = amounts_of(*size)
        return self._sizes[size]


class Held(NamedTuple):
    """A QUEUED Workload that ends when it has been without a client for too long."""

    id: str
    orphan_after_s: float
    unheld_boot_s: float | None
    """Since when it has been without one; None while it has one."""


def all_held(store: Store) -> list[Held]:
    """Return those that end without a client."""
    columns = ", ".join(Held._fields)
    return [
        Held(*found) for found in store.rows(f"SELECT {columns} FROM workloads WHERE {_QUEUED} AND orphan_after_s IS NOT NULL")
    ]


def amounts_of(cpu: int, memory: int, resource: str, gpus: int) -> dict[str, int]:
    """Return what a Workload holds or wants, by its columns."""
    return {CPU: cpu, MEMORY: memory} | ({resource: gpus} if gpus else {})


def is_any(store: Store, *, gpus: int = 0) -> bool:
    """Return whether something is QUEUED that wants at least so many devices."""
    return bool(store.rows(f"SELECT 1 FROM workloads WHERE {_QUEUED} AND gpus >= ? LIMIT 1", (gpus,)))


def may_come_back(store: Store) -> bool:
    """Return whether something runs that may be QUEUED again by itself: with retries left, or told to yield."""
    yields = f"stop IS NOT NULL AND kind != '{Kind.KERNEL}' AND json_extract(stop, '$.code') = 'end.preempted'"
    return bool(
        store.rows(
            "SELECT 1 FROM workloads WHERE phase IN (?, ?) "
            f"AND (({yields}) OR (stop IS NULL AND kind != '{Kind.KERNEL}' AND retries > failures)) LIMIT 1",
            (Phase.STARTING.value, Phase.RUNNING.value),
        )
    )


def begin_boot(connection: sqlite3.Connection, moment: Moment) -> None:
    """Count the times of those who have waited since before a restart of the machine from its start, and clients from now."""
    connection.execute(
        "UPDATE workloads SET boot_id = ?, queued_boot_s = 0, unheld_boot_s = ?, version = version + 1 "
        f"WHERE {_QUEUED} AND boot_id != ?",
        (moment.boot_id, moment.boot_s, moment.boot_id),
    )


def admit(connection: sqlite3.Connection, id: str, devices: str, moment: Moment) -> None:
    """Give a QUEUED Workload its devices, a list of ids as JSON; from then on it is STARTING."""
    connection.execute(
        "UPDATE workloads SET phase = ?, devices = ?, reason = NULL, called = 0, "
        f"admitted = ?, admitted_boot_s = ?, boot_id = ?, version = version + 1 WHERE id = ? AND {_QUEUED}",
        (Phase.STARTING.value, devices, moment.wall_s, moment.boot_s, moment.boot_id, id),
    )


def note_reasons(connection: sqlite3.Connection, reasons: Iterable[tuple[str, bool, str]]) -> None:
    """Write why QUEUED Workloads wait: of each a Reason as JSON, whether others are giving back what it waits for, and its id."""
    connection.executemany(
        f"UPDATE workloads SET reason = ?, called = ?, version = version + 1 WHERE id = ? AND {_QUEUED}", reasons
    )


def note_holding(connection: sqlite3.Connection, id: str, unheld_boot_s: float | None) -> None:
    """Write since when a QUEUED Workload has been without a client, None if it has one. Nobody is shown that."""
    connection.execute(f"UPDATE workloads SET unheld_boot_s = ? WHERE id = ? AND {_QUEUED}", (unheld_boot_s, id))
