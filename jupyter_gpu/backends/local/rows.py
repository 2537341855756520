"""What the store knows of each Workload: its row, and how it is shown. How rows change stands in `writing`."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import Kind, Phase, Reason, ReplicaStatus, Schema, Workload, WorkloadSpec, WorkloadStatus

_S = TypeVar("_S", bound=Schema)
_QUEUED = f"phase = '{Phase.QUEUED}'"
_ACTIVE = f"phase IN ('{Phase.STARTING}', '{Phase.RUNNING}')"
_LINE = "row_number() OVER (PARTITION BY queue ORDER BY called DESC, priority DESC, sequence)"


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
    priority: int
    resource: str
    gpus: int
    product: str | None
    cpu: int
    """In thousandths of a core."""
    memory: int
    preemptible: int
    retries: int
    failures: int
    """How many of the retries were used."""
    max_runtime_s: float | None
    ran_s: float
    """How long earlier attempts of this request ran."""
    start_timeout_s: float
    orphan_after_s: float | None
    grace_s: float
    ttl_s: float
    phase: str
    reason: str | None
    """A Reason as JSON."""
    devices: str
    """A list of ids as JSON."""
    created: float
    admitted: float | None
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

    @property
    def left_s(self) -> float | None:
        """What it has left of ``max_runtime_s``; None where nothing limits it."""
        return None if self.max_runtime_s is None else self.max_runtime_s - self.ran_s

    def workload(self, position: int | None) -> Workload:
        """Return it as a place shows it, with its place in its queue."""
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
            position=position,
            replicas=(replica,),
            created=_time(self.created),
            started=_time(self.started) if self.started else None,
            ended=_time(self.ended) if self.ended else None,
            sequence=self.sequence,
        )
        return Workload(spec=read(WorkloadSpec, self.spec), status=status)


_COLUMNS = ", ".join(field.name for field in fields(Row))


class Mark(NamedTuple):
    """What changes whenever a Workload is shown differently."""

    sequence: int
    attempt: int
    version: int
    position: int | None
    """Its place in its queue, 1 is next; None of one that is not QUEUED."""


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


def is_active(store: Store, id: str, attempt: int) -> bool:
    """Return whether this attempt is STARTING or RUNNING."""
    return bool(store.rows(f"SELECT 1 FROM workloads WHERE id = ? AND attempt = ? AND {_ACTIVE}", (id, attempt)))


def ids(store: Store) -> list[str]:
    """Return the id of every Workload."""
    return [id for (id,) in store.rows("SELECT id FROM workloads")]


def with_secrets(store: Store) -> list[tuple[str, int, bool]]:
    """Return of each Workload that has or had secrets its id, its newest attempt, and whether that lives."""
    return store.rows(
        f"SELECT id, attempt, {_ACTIVE} OR {_QUEUED} FROM workloads WHERE kind = ? OR instr(spec, '\"secrets\":[]') = 0",
        (Kind.KERNEL.value,),
    )


def marks(store: Store) -> dict[str, Mark]:
    """Return for each id what changes whenever it is shown differently; places in line are counted here and stored nowhere."""
    found = store.rows(
        f"SELECT id, sequence, attempt, version, NULL FROM workloads WHERE NOT {_QUEUED} "
        f"UNION ALL SELECT id, sequence, attempt, version, {_LINE} FROM workloads WHERE {_QUEUED}"
    )
    return {columns[0]: Mark(*columns[1:]) for columns in found}


@functools.cache
def _node() -> str:
    return platform.node() or "localhost"


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
