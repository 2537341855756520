"""Who holds what of a place, as the queue's decisions want to know it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.devices import Devices
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.waiting import amounts_of
from jupyter_gpu.schema import Holding, Kind, Stock, longest_s


def holdings(active: Iterable[Row], found: Devices, moment: Moment) -> list[Holding]:
    """Return what each of those that are STARTING or RUNNING holds."""
    models = {device.id: device.model for device in found.devices}
    return [_holding(row, models, moment) for row in active]


def stocks(found: Devices, held: Mapping[str, str]) -> list[Stock]:
    """Return the devices by resource and model, and how many of them nobody holds or computes on."""
    kinds = [(device.accelerator.resource, device.model) for device in found.devices]
    free = Counter(
        kind for kind, device in zip(kinds, found.devices, strict=True) if device.id not in held and device.foreign is None
    )
    return [Stock(*kind, capacity, free[kind]) for kind, capacity in Counter(kinds).items()]


def held_devices(active: Iterable[Row]) -> dict[str, str]:
    """Return who has which device: {device id: Workload id}."""
    return {device: row.id for row in active for device in row.device_ids}


def _holding(row: Row, models: Mapping[str, str], moment: Moment) -> Holding:
    return Holding(
        id=row.id,
        sequence=row.sequence,
        queue=row.queue,
        priority=row.priority,
        holds=amounts_of(row.cpu, row.memory, row.resource, row.gpus),
        models=Counter(models[id] for id in row.device_ids if id in models),
        device=row.resource if row.gpus else None,
        since_s=(row.admitted_boot_s or 0.0) if row.boot_id == moment.boot_id else 0.0,
        max_runtime_s=row.left_s,
        ends_by_s=_ends_by_s(row) if row.boot_id == moment.boot_id else moment.boot_s,
        grace_s=row.grace_s,
        preemptible=bool(row.preemptible),
        leaving=row.stop is not None,
        kind=Kind(row.kind),
        name=row.name,
        owner=row.owner,
    )


def _ends_by_s(row: Row) -> float | None:
    """Return when (boot clock) it will have ended at the latest; None if nothing says so."""
    if row.kill_boot_s is not None:
        return row.kill_boot_s
    retries = 0 if row.stop is not None or row.kind == Kind.KERNEL else max(0, row.retries - row.failures)
    stays_s = longest_s(row.left_s, row.start_timeout_s, row.grace_s, retries)
    if stays_s is None or row.admitted_boot_s is None:
        return None
    if row.started is None or row.admitted is None:
        return row.admitted_boot_s + stays_s
    return row.admitted_boot_s + max(0.0, row.started - row.admitted) + stays_s - row.start_timeout_s
