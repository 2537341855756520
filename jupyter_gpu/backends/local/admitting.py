"""Decide who of the QUEUED starts, and end those that nobody wants any more."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from jupyter_gpu.backends.local import locks, rows, starting, waiting
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.devices import Devices
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.waiting import Waiting
from jupyter_gpu.queueing import admit
from jupyter_gpu.schema import Reason

_AGAIN_S = 1.0  # devices that somebody else computed on become free without a word


def admit_waiting(site: Site, moment: Moment) -> float | None:
    """End orphans and admit what fits; return when (boot clock) to look again, None if nothing waits any more."""
    if not waiting.is_any(site.store):
        return None
    found = site.devices() if waiting.is_any(site.store, gpus=1) else None
    with site.store.transaction() as connection:
        # one that came after the look at the devices is seen by its own submit's step
        queued = [one for one in waiting.all_waiting(site.store) if found or not one.claim.gpus]
        due, orphans = _find_orphans(site, connection, queued, moment)
        staying = [one for one in queued if one.claim.id not in orphans]
        _admit(site, connection, staying, found or Devices(), moment)
    for id in orphans:
        if row := rows.find(site.store, id):
            starting.clear(site.state, row)
    return min([moment.boot_s + _AGAIN_S, *due]) if waiting.is_any(site.store) else None


def _find_orphans(
    site: Site, connection: sqlite3.Connection, queued: Sequence[Waiting], moment: Moment
) -> tuple[list[float], set[str]]:
    """End who has been without a client for too long; return when (boot clock) others will have been, and who it was."""
    due: list[float] = []
    orphans: set[str] = set()
    for one in queued:
        if one.orphan_after_s is None:
            continue
        unheld = _unheld_since(site, connection, one, moment)
        if unheld is None:
            continue
        if moment.boot_s < unheld + one.orphan_after_s:
            due.append(unheld + one.orphan_after_s)
        elif row := rows.find(site.store, one.claim.id):
            words = f"nobody was its client for {one.orphan_after_s:g} s"
            rows.end(connection, row, Reason(code="end.orphaned", message=words), moment)
            orphans.add(one.claim.id)
    return due, orphans


def _unheld_since(site: Site, connection: sqlite3.Connection, one: Waiting, moment: Moment) -> float | None:
    """Return since when (boot clock) it has been without a client, None if it has one; and write down what is new."""
    if not locks.is_free(site.state.hold_lock(one.claim.id)):
        unheld = None
    elif one.boot_id != moment.boot_id or one.unheld_boot_s is None:
        unheld = moment.boot_s
    else:
        return one.unheld_boot_s
    if unheld != one.unheld_boot_s or one.boot_id != moment.boot_id:
        waiting.note_holding(connection, one.claim.id, moment.boot_id, unheld)
    return unheld


def _admit(site: Site, connection: sqlite3.Connection, queued: Sequence[Waiting], found: Devices, moment: Moment) -> None:
    free = found.free(rows.held_devices(site.store))
    claims = {one.claim.id: one.claim for one in queued}
    admission = admit(claims.values(), {resource: len(ids) for resource, ids in free.items()}, found.capacity)
    for one in queued:
        if reason := admission.reasons.get(one.claim.id):
            position, words = admission.positions[one.claim.id], rows.json_of(reason)
            if (position, words) != (one.position, one.reason):
                waiting.note_place(connection, one.claim.id, position, words)
    for id in admission.start:
        claim = claims[id]
        ids = free.get(claim.resource, [])
        given, free[claim.resource] = ids[: claim.gpus], ids[claim.gpus :]
        waiting.admit(connection, id, json.dumps(given), moment)
