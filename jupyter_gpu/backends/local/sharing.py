"""The queues of a place: what a site set, kept in the store, or one with everything."""

from __future__ import annotations

import functools
import sqlite3

from jupyter_gpu.backends.local.devices import Devices
from jupyter_gpu.backends.local.holdings import stocks
from jupyter_gpu.backends.local.rows import read
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.errors import ConflictError, InvalidRequestError
from jupyter_gpu.queueing.quotas import effective
from jupyter_gpu.schema import Phase, QueueSet, unknown_resources

_QUEUES = "queues"
_NAMED = 3  # how many of those in the way a message names


def queue_set(store: Store) -> QueueSet:
    """Return the queues as they are set; none at all means one with all devices."""
    found = store.rows("SELECT value FROM settings WHERE name = ?", (_QUEUES,))
    return _read(found[0][0]) if found else QueueSet()


def apply(site: Site, queues: QueueSet, *, dry_run: bool) -> None:
    """Set the queues of a place.

    Raises:
        InvalidRequestError: a quota of a resource that the place does not have.
        ConflictError: a queue that would be gone has work.
    """
    found = site.devices()
    _refuse_unknown(site.name, queues, found)
    names = {queue.name for queue in effective(queues, stocks(found, {})).queues}
    if dry_run:
        _refuse_removed(site.store.rows(_LIVING), names)
        return
    with site.store.transaction() as connection:
        _refuse_removed(connection.execute(_LIVING).fetchall(), names)
        _write(connection, queues)


_LIVING = (
    f"SELECT queue, id FROM workloads WHERE phase IN ('{Phase.QUEUED}', '{Phase.STARTING}', '{Phase.RUNNING}') ORDER BY sequence"
)


def _refuse_unknown(place: str, queues: QueueSet, found: Devices) -> None:
    if wrong := unknown_resources(queues, found.capacity):
        named = ", ".join(f"{resource!r} (of {name})" for name, resource in wrong)
        there = ", ".join(["cpu", "memory", *sorted(found.capacity)])
        raise InvalidRequestError(f"{place} has no {named}; its resources are {there}")


def _refuse_removed(living: list[tuple[str, str]], names: set[str]) -> None:
    for name in dict.fromkeys(queue for queue, _ in living):
        if name in names:
            continue
        ids = [id for queue, id in living if queue == name]
        shown = ", ".join(map(repr, ids[:_NAMED])) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")
        raise ConflictError(f"the queue {name!r} can't be removed while it has work: {shown}; cancel that, or wait for its end")


def _write(connection: sqlite3.Connection, queues: QueueSet) -> None:
    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (_QUEUES, queues.model_dump_json()))


@functools.lru_cache(maxsize=8)
def _read(text: str) -> QueueSet:
    return read(QueueSet, text)
