"""What the store knows of each Workload: rows, how they change, and how they are shown."""

from __future__ import annotations

import functools
import json
import platform
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import Phase, Reason, ReplicaStatus, Schema, Workload, WorkloadSpec, WorkloadStatus

_S = TypeVar("_S", bound=Schema)
_SHOWN_S = 1.0  # so that those who watch see the end
_ACTIVE = f"phase IN ('{Phase.STARTING}', '{Phase.RUNNING}')"
_STORY = "id, attempt, sequence, phase, reason, devices, created, admitted, started, ended, expires, spec"


@dataclass(frozen=True)
class Row:
    """The newest attempt at one Workload. Times without ``boot`` in their name are seconds since 1970."""

    sequence: int
    id: str
    attempt: int
    version: int
    """Counts the changes of this row."""
    owner: str
    content: str
    kind: str
    name: str
    queue: str
    start_timeout_s: float
    orphan_after_s: float | None
    grace_s: float
    ttl_s: float
    phase: str
    position: int | None
    reason: str | None
    """A Reason as JSON."""
    devices: str
    """A list of ids as JSON."""
    created: float
    started: float | None
    ended: float | None
    boot_id: str
    """The boot that all ``boot`` times of this row count from."""
    admitted_boot_s: float | None
    unheld_boot_s: float | None
    """Since when a QUEUED one has been without a client; None while it has one."""
    spawned: int
    """Whether its runner was started."""
    stop: str | None
    """Why it must end, as JSON: a Reason's fields, and ``grace_s``."""
    stop_sent: int
    """Whether its runner was told."""
    kill_boot_s: float | None
    """When to kill what its runner did not, after the grace period."""
    spec: str

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return Phase(self.phase).is_final

    @property
    def device_ids(self) -> list[str]:
        """The devices that it has, or had."""
        return list(json.loads(self.devices)) if self.devices != "[]" else []

    @property
    def stop_reason(self) -> Reason | None:
        """Why it must end, if somebody wants that."""
        if self.stop is None:
            return None
        wish = json.loads(self.stop)
        return Reason(code=wish["code"], message=wish["message"], facts=wish["facts"])

    def workload(self) -> Workload:
        """Return it as a place shows it."""
        phase = Phase(self.phase)
        reason = read(Reason, self.reason) if self.reason else None
        replica = ReplicaStatus(
            rank=0,
            phase=phase,
            reason=reason,
            node=_node() if self.admitted_boot_s is not None else None,
            devices=tuple(self.device_ids),
        )
        status = WorkloadStatus(
            id=self.id,
            phase=phase,
            ready=phase is Phase.RUNNING,
            reason=reason,
            attempt=self.attempt,
            position=self.position,
            replicas=(replica,),
            created=_time(self.created),
            started=_time(self.started) if self.started else None,
            ended=_time(self.ended) if self.ended else None,
            sequence=self.sequence,
        )
        return Workload(spec=read(WorkloadSpec, self.spec), status=status)


_COLUMNS = ", ".join(field.name for field in fields(Row))


def read(schema: type[_S], text: str) -> _S:
    """Return a schema object from the store; fields that only newer code knows are passed over."""
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        value = json.loads(text)
        for detail in error.errors(include_url=False):
            if detail["type"] != "extra_forbidden":
                raise
            place = value
            for key in detail["loc"][:-1]:
                place = place[key]
            del place[detail["loc"][-1]]
        return schema.model_validate(value)


def find(store: Store, id: str) -> Row | None:
    """Return a Workload's row."""
    found = store.rows(f"SELECT {_COLUMNS} FROM workloads WHERE id = ?", (id,))
    return Row(*found[0]) if found else None


def get(store: Store, id: str, place: str) -> Row:
    """Return a Workload's row.

    Raises:
        NotFoundError: there is none.
    """
    row = find(store, id)
    if row is None:
        raise NotFoundError(f"there is no workload {id!r} at {place}")
    return row


def find_many(store: Store, ids: Iterable[str] | None = None) -> list[Row]:
    """Return the rows of these Workloads, or of all, in order of arrival."""
    if ids is None:
        return [Row(*found) for found in store.rows(f"SELECT {_COLUMNS} FROM workloads ORDER BY sequence")]
    chosen = "SELECT value FROM json_each(?)"
    return [
        Row(*found)
        for found in store.rows(
            f"SELECT {_COLUMNS} FROM workloads WHERE id IN ({chosen}) ORDER BY sequence", (json.dumps(list(ids)),)
        )
    ]


def active(store: Store) -> list[Row]:
    """Return what is STARTING or RUNNING."""
    return [Row(*found) for found in store.rows(f"SELECT {_COLUMNS} FROM workloads WHERE {_ACTIVE} ORDER BY sequence")]


def versions(store: Store) -> dict[str, tuple[int, int]]:
    """Return for each id what changes whenever its row does."""
    return {id: (sequence, version) for id, sequence, version in store.rows("SELECT id, sequence, version FROM workloads")}


def has_attempt(store: Store, id: str, attempt: int) -> bool:
    """Return whether the story of an earlier attempt is kept."""
    return bool(store.rows("SELECT 1 FROM attempts WHERE id = ? AND attempt = ?", (id, attempt)))


def held_devices(store: Store) -> dict[str, str]:
    """Return who has which device: {device id: Workload id}."""
    held = store.rows(f"SELECT id, devices FROM workloads WHERE {_ACTIVE} AND devices != '[]'")
    return {device: id for id, devices in held for device in json.loads(devices)}


def insert(connection: sqlite3.Connection, spec: WorkloadSpec, attempt: int, moment: Moment) -> None:
    """Put an attempt into its queue; an earlier one becomes a story."""
    connection.execute(f"INSERT INTO attempts ({_STORY}) SELECT {_STORY} FROM workloads WHERE id = ?", (spec.id,))
    connection.execute("DELETE FROM workloads WHERE id = ?", (spec.id,))
    columns = {
        "id": spec.id,
        "attempt": attempt,
        "owner": spec.owner,
        "content": spec.content_hash(),
        "kind": spec.kind.value,
        "name": spec.name,
        "queue": spec.queue,
        "priority": spec.priority,
        "resource": spec.resources.accelerator.resource,
        "gpus": spec.resources.gpus * spec.replicas,
        "start_timeout_s": spec.start_timeout_s,
        "orphan_after_s": spec.orphan_after_s,
        "grace_s": spec.grace_s,
        "ttl_s": spec.ttl_s,
        "phase": Phase.QUEUED.value,
        "created": moment.wall_s,
        "boot_id": moment.boot_id,
        "unheld_boot_s": moment.boot_s,
        "spec": spec.model_dump_json(),
    }
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    connection.execute(f"INSERT INTO workloads ({names}) VALUES ({marks})", tuple(columns.values()))


def change(connection: sqlite3.Connection, id: str, attempt: int, *phases: Phase, **columns: Any) -> bool:
    """Set columns of a row if it is still that attempt, in one of these phases (any, if none is given); return whether it was."""
    values = {name: json_of(value) if isinstance(value, Reason) else value for name, value in columns.items()}
    settings = ", ".join(f"{name} = ?" for name in values)
    condition = f" AND phase IN ({', '.join('?' * len(phases))})" if phases else ""
    cursor = connection.execute(
        f"UPDATE workloads SET {settings}, version = version + 1 WHERE id = ? AND attempt = ?{condition}",
        (*values.values(), id, attempt, *(phase.value for phase in phases)),
    )
    return cursor.rowcount == 1


def end(connection: sqlite3.Connection, row: Row, reason: Reason, moment: Moment, ended: float | None = None) -> bool:
    """Write a final phase, unless there is one; ``ended`` is when that was, in seconds since 1970.

    The story's time counts from now: what ended while nobody looked is not forgotten before somebody could.
    """
    expires = moment.wall_s + max(row.ttl_s, _SHOWN_S)
    final = {
        "phase": reason.final_phase.value,
        "reason": reason,
        "position": None,
        "ended": ended or moment.wall_s,
        "expires": expires,
    }
    return change(connection, row.id, row.attempt, Phase.QUEUED, Phase.STARTING, Phase.RUNNING, **final)


def is_any_expired(store: Store, wall_s: float) -> bool:
    """Return whether the time of some story is over."""
    return bool(
        store.rows(
            "SELECT 1 FROM workloads WHERE expires <= ? UNION ALL SELECT 1 FROM attempts WHERE expires <= ? LIMIT 1",
            (wall_s, wall_s),
        )
    )


def forget_expired(connection: sqlite3.Connection, wall_s: float) -> tuple[list[str], list[tuple[str, int]]]:
    """Remove the stories whose time is over, and return which: ids, and (id, attempt) of those with a newer attempt."""
    ids = [id for (id,) in connection.execute("SELECT id FROM workloads WHERE expires <= ?", (wall_s,))]
    earlier = connection.execute("SELECT id, attempt FROM attempts WHERE expires <= ?", (wall_s,)).fetchall()
    for id in ids:
        connection.execute("DELETE FROM workloads WHERE id = ?", (id,))
        connection.execute("DELETE FROM attempts WHERE id = ?", (id,))
    connection.execute("DELETE FROM attempts WHERE expires <= ?", (wall_s,))
    return ids, earlier


def json_of(reason: Reason) -> str:
    """Return a Reason as the store keeps it."""
    return reason.model_dump_json(fallback=str)


def document(spec: WorkloadSpec, attempt: int, protocol: int) -> Mapping[str, Any]:
    """Return a row as a document that people can read."""
    return {"document": "workload", "protocol": protocol, "attempt": attempt, "spec": spec.model_dump(mode="json")}


@functools.cache
def _node() -> str:
    return platform.node() or "localhost"


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
