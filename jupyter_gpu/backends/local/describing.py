"""Show the place as it is now."""

from __future__ import annotations

import os
import platform

from jupyter_gpu.backends.local import rows
from jupyter_gpu.backends.local.admitting import state_of
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.devices import account
from jupyter_gpu.backends.local.holdings import held_devices
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.waiting import Line
from jupyter_gpu.queueing import queue_statuses
from jupyter_gpu.queueing.quotas import effective
from jupyter_gpu.schema import Node, Place


def describe(site: Site, moment: Moment) -> Place:
    """Return the place as it is now."""
    found = site.devices()
    with site.store.snapshot():
        active, queued = rows.active(site.store), Line(site.store).read()
        queued.sort(key=lambda one: (not one.claim.called, -one.claim.priority, one.claim.sequence))
        state = state_of(site, queued, active, found, moment)
    held = held_devices(active)
    return Place(
        name=site.name,
        backend="local",
        identity=account(),
        address=str(site.state.path),
        engines=("process",),
        capacity=found.capacity,
        free={resource: len(ids) for resource, ids in found.free(held).items()},
        devices=found.held_by(held),
        nodes=(
            Node(
                name=platform.node() or "localhost",
                devices=found.capacity,
                cpus=os.cpu_count() or 0,
                memory_bytes=_memory_bytes(),
            ),
        ),
        queues=queue_statuses(state),
        queue_set=effective(state.queues, state.stocks),
        decides=True,
        stocks=tuple(state.stocks),
        claims=tuple(state.claims),
        holdings=tuple(state.holdings),
        time_s=state.now_s,
        notes=found.notes,
    )


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
