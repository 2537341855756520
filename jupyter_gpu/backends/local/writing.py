"""How the row of a Workload changes: it comes, moves on, ends, or is put back into its queue."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.schema import CPU, Phase, Reason, WorkloadSpec, amounts

_SHOWN_S = 1.0  # so that those who watch see the end


def insert(connection: sqlite3.Connection, spec: WorkloadSpec, attempt: int, moment: Moment) -> None:
    """Put a request into its queue; there is no row of its id."""
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
        "product": spec.resources.product,
        "cpu": amounts(spec.resources)[CPU],
        "memory": spec.resources.memory_bytes,
        "preemptible": spec.preemptible,
        "retries": spec.retries,
        "max_runtime_s": spec.max_runtime_s,
        "start_timeout_s": spec.start_timeout_s,
        "orphan_after_s": spec.orphan_after_s,
        "grace_s": spec.grace_s,
        "ttl_s": spec.ttl_s,
        "phase": Phase.QUEUED.value,
        "created": moment.wall_s,
        "boot_id": moment.boot_id,
        "queued_boot_s": moment.boot_s,
        "unheld_boot_s": moment.boot_s,
        "spec": spec.model_dump_json(),
    }
    names, values = ", ".join(columns), ", ".join("?" * len(columns))
    connection.execute(f"INSERT INTO workloads ({names}) VALUES ({values})", tuple(columns.values()))


def change(connection: sqlite3.Connection, id: str, attempt: int, *phases: Phase, **columns: Any) -> bool:
    """Set columns of a row if it is still that attempt, in one of these phases (any, if none is given); return whether it was."""
    condition = f" AND phase IN ({', '.join('?' * len(phases))})" if phases else ""
    return _set(connection, f"id = ? AND attempt = ?{condition}", (id, attempt, *(phase.value for phase in phases)), **columns)


def _set(connection: sqlite3.Connection, condition: str, parameters: Sequence[Any], **columns: Any) -> bool:
    values = {name: json_of(value) if isinstance(value, Reason) else value for name, value in columns.items()}
    settings = ", ".join(f"{name} = ?" for name in values)
    cursor = connection.execute(
        f"UPDATE workloads SET {settings}, version = version + 1 WHERE {condition}", (*values.values(), *parameters)
    )
    return cursor.rowcount == 1


def end(connection: sqlite3.Connection, row: Row, reason: Reason, moment: Moment, ended: float | None = None) -> bool:
    """Write a final phase, unless there is one; ``ended`` is when that was, in seconds since 1970.

    The story's time counts from now: what ended while nobody looked is not forgotten before somebody could.
    """
    kept_s = max(row.ttl_s, _SHOWN_S)
    final = {
        "phase": reason.final_phase.value,
        "reason": reason,
        "ended": ended or moment.wall_s,
        "boot_id": moment.boot_id,
        "expires": moment.wall_s + kept_s,
        "expires_boot_s": moment.boot_s + kept_s,
    }
    connection.execute(  # what earlier attempts of the same request left goes with it
        "UPDATE attempts SET expires = ?, expires_boot_s = ?, boot_id = ? WHERE sequence = ? AND expires IS NULL",
        (final["expires"], final["expires_boot_s"], moment.boot_id, row.sequence),
    )
    return change(connection, row.id, row.attempt, Phase.QUEUED, Phase.STARTING, Phase.RUNNING, **final)


def try_again(connection: sqlite3.Connection, row: Row, moment: Moment, *, failures: int, ran_s: float) -> None:
    """Put a Workload whose attempt has ended back into its queue, where its old place is, for the next attempt."""
    _set(
        connection,
        "id = ? AND attempt = ?",
        (row.id, row.attempt),
        attempt=row.attempt + 1,
        failures=failures,
        ran_s=ran_s,
        phase=Phase.QUEUED.value,
        reason=None,
        called=0,
        devices="[]",
        created=moment.wall_s,
        admitted=None,
        started=None,
        ended=None,
        expires=None,
        expires_boot_s=None,
        boot_id=moment.boot_id,
        queued_boot_s=moment.boot_s,
        unheld_boot_s=moment.boot_s,
        admitted_boot_s=None,
        spawned=0,
        stop=None,
        stop_sent=0,
        kill_boot_s=None,
    )


def json_of(reason: Reason) -> str:
    """Return a Reason as the store keeps it."""
    return reason.model_dump_json(fallback=str)
