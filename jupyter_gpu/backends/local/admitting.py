"""Carry out what the queue's rules decide: who of the QUEUED starts, who must yield, and why the others wait."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence

from jupyter_gpu.backends.local import choosing, locks, rows, settling, sharing, starting, waiting, writing
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.devices import Devices
from jupyter_gpu.backends.local.holdings import held_devices, holdings, stocks
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.waiting import Held, Line, Waiting
from jupyter_gpu.queueing import State, Yielding, decide
from jupyter_gpu.schema import Reason

_CALLED = "queue.preempting"
_AGAIN_S = 1.0  # devices that somebody else computed on become free without a word


def admit_waiting(site: Site, line: Line, moment: Moment) -> float | None:
    """End orphans, admit what fits, and tell who must yield; return when (boot clock) to look again, None if nothing waits.

    ``line`` is the same from step to step.
    """
    if not waiting.is_any(site.store):
        return None
    found = site.devices() if waiting.is_any(site.store, gpus=1) else None
    with site.store.transaction() as connection:
        queued = line.read()
        if any(one.boot_id != moment.boot_id for one in queued):
            waiting.begin_boot(connection, moment)
            queued = line.read()
        due, orphans = _end_orphans(site, connection, moment)
        # one that came after the look at the devices is seen by its own submit's step
        staying = [one for one in queued if one.claim.id not in orphans and (found or not one.claim.gpus)]
        again, yielding = _decide(site, connection, staying, found or Devices(), moment)
    for id in orphans:
        if row := rows.find(site.store, id):
            starting.clear(site.state, row)
    due += [at for one in yielding if (at := settling.tell_to_stop(site, rows.get(site.store, one, site.name))) is not None]
    if not waiting.is_any(site.store):
        return min(due, default=None)
    return min([moment.boot_s + _AGAIN_S, *([] if again is None else [again]), *due])


def state_of(site: Site, queued: Sequence[Waiting], active: Sequence[Row], found: Devices, moment: Moment) -> State:
    """Return all that the queue's rules go by."""
    return State(
        claims=[one.claim for one in queued],
        holdings=holdings(active, found, moment),
        stocks=stocks(found, held_devices(active)),
        queues=sharing.queue_set(site.store),
        now_s=moment.boot_s,
    )


def _decide(
    site: Site, connection: sqlite3.Connection, queued: Sequence[Waiting], found: Devices, moment: Moment
) -> tuple[float | None, list[str]]:
    """Write what is decided; return when (boot clock) time alone may change it, and who was told to yield."""
    active = rows.active(site.store)
    decision = decide(state_of(site, queued, active, found, moment))
    _note_reasons(connection, queued, decision.reasons)
    if decision.starts:
        claims = {one.claim.id: one.claim for one in queued}
        held = held_devices(active)
        free = [device for device in found.devices if device.id not in held and device.foreign is None]
        for id, devices in choosing.choose(decision, claims, free).items():
            waiting.admit(connection, id, json.dumps(devices), moment)
    here = {row.id: row for row in active}
    yielding = [one.holding.id for one in decision.yielding if _must_yield(connection, here[one.holding.id], one, moment)]
    return decision.look_again_s, yielding


def _must_yield(connection: sqlite3.Connection, row: Row, yielding: Yielding, moment: Moment) -> bool:
    if row.stop is not None:
        return False
    settling.wish_end(connection, row, yielding.reason, row.grace_s, moment)
    return True


def _note_reasons(connection: sqlite3.Connection, queued: Sequence[Waiting], reasons: Mapping[str, Reason]) -> None:
    """Write the reasons that are new; most are the very same objects, and each is put into words once."""
    written: dict[int, str] = {}
    news = []
    for one in queued:
        if (reason := reasons.get(one.claim.id)) is None:
            continue
        if (text := written.get(id(reason))) is None:
            text = written[id(reason)] = writing.json_of(reason)
        if text != one.reason:
            news.append((text, reason.code == _CALLED, one.claim.id))
    if news:
        waiting.note_reasons(connection, news)


def _end_orphans(site: Site, connection: sqlite3.Connection, moment: Moment) -> tuple[list[float], set[str]]:
    """End who has been without a client for too long; return when (boot clock) others will have been, and who it was."""
    due: list[float] = []
    orphans: set[str] = set()
    for one in waiting.all_held(site.store):
        unheld = _unheld_since(site, connection, one, moment)
        if unheld is None:
            continue
        if moment.boot_s < unheld + one.orphan_after_s:
            due.append(unheld + one.orphan_after_s)
        elif row := rows.find(site.store, one.id):
            words = f"nobody was its client for {one.orphan_after_s:g} s"
            writing.end(connection, row, Reason(code="end.orphaned", message=words), moment)
            orphans.add(one.id)
    return due, orphans


def _unheld_since(site: Site, connection: sqlite3.Connection, one: Held, moment: Moment) -> float | None:
    """Return since when (boot clock) it has been without a client, None if it has one; and write down what is new."""
    is_held = not locks.is_free(site.state.hold_lock(one.id))
    if is_held == (one.unheld_boot_s is None):
        return one.unheld_boot_s
    unheld = None if is_held else moment.boot_s
    waiting.note_holding(connection, one.id, unheld)
    return unheld
