"""Show the place as it is now."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable

from jupyter_gpu.backends.local import rows
from jupyter_gpu.backends.local.devices import account
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.queueing import Claim
from jupyter_gpu.schema import Node, Phase, Place, QueueStatus, WorkloadSpec


def describe(site: Site) -> Place:
    """Return the place as it is now."""
    found = site.devices()
    held = rows.held_devices(site.store)
    shown = [row for row in rows.find_many(site.store) if not row.is_final]
    return Place(
        name=site.name,
        backend="local",
        identity=account(),
        address=str(site.state.path),
        engines=("process",),
        capacity=found.capacity,
        free={resource: len(ids) for resource, ids in found.free(held).items()},
        devices=tuple(device.model_copy(update={"holder": held.get(device.id)}) for device in found.devices),
        nodes=(
            Node(
                name=platform.node() or "localhost",
                devices=found.capacity,
                cpus=os.cpu_count() or 0,
                memory_bytes=_memory_bytes(),
            ),
        ),
        queues=tuple(_queue(name, shown) for name in sorted({"default"} | {row.queue for row in shown})),
        notes=found.notes,
    )


def _queue(name: str, shown: Iterable[rows.Row]) -> QueueStatus:
    members = [row for row in shown if row.queue == name]
    waiters = [Claim.of(rows.read(WorkloadSpec, row.spec), row.sequence) for row in members if row.phase == Phase.QUEUED]
    waiters.sort(key=lambda claim: (-claim.priority, claim.sequence))
    holders = tuple(row.id for row in members if row.phase != Phase.QUEUED and row.device_ids)
    return QueueStatus(name=name, holders=holders, waiters=tuple(claim.id for claim in waiters))


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
