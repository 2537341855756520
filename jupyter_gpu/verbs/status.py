"""``status``: the place, its devices, who holds them, and who waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jupyter_gpu.schema import Device, Missing, Phase, Place, QueueStatus, Workload, format_bytes
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.words import NOTHING, age, counts, phase_text, plain, share, short_ids, short_name, size, table, why

_SHORT_UUID = 12  # GPU-5ae1b2c3: enough to find it in the table


@verb("status")
def status(asking: Asking) -> Answer:
    """Show the place: devices, holders, queues."""
    with asking.busy("looking at the place"):
        place, workloads = asking.gpu.place(), asking.gpu.list()
    data = {"place": place.model_dump(mode="json"), "workloads": [workload.model_dump(mode="json") for workload in workloads]}
    return Answer(data, Group(*_parts(place, {workload.spec.id: workload for workload in workloads})))


def missing_text(missing: Missing) -> str:
    """Return what could not be read, and what would let it be."""
    return f"{missing.what} can't be read: {missing.why}" + (f" (needs the right to {missing.right})" if missing.right else "")


def _parts(place: Place, workloads: Mapping[str, Workload]) -> Iterator[RenderableType]:
    short = short_ids({*workloads, *(device.holder for device in place.devices if device.holder)})
    yield Text.assemble((plain(place.name), "bold"), f": {place.backend}, as {plain(place.identity)}, at {plain(place.address)}")
    free = (
        ""
        if place.free is None
        else f"; free: {counts({name: n for name, n in place.free.items() if n}) if any(place.free.values()) else 'none'}"
    )
    yield Text(f"{counts(place.capacity)}{free}; runs workloads as {', '.join(place.engines) or NOTHING}")
    for note in place.notes:
        yield Text(f"note: {note}", style="yellow")
    for missing in place.missing:
        yield Text(f"note: {missing_text(missing)}", style="yellow")
    if place.devices:
        yield ""
        yield _devices(place, workloads, short)
    elif place.nodes:
        yield ""
        yield _nodes(place)
    for queue in place.queues:
        yield ""
        yield from _queue(queue, workloads, short)


def _devices(place: Place, workloads: Mapping[str, Workload], short: Mapping[str, str]) -> Table:
    rows = table("DEVICE", "KIND", "MODEL", "MEMORY", "HELD BY")
    for device in place.devices:
        holder: str | Text = "free"
        if device.holder:
            holder = _named(device.holder, workloads, short)
        elif device.foreign:
            holder = Text(f"not ours: {plain(device.foreign)}", style="dim")
        memory = format_bytes(device.memory_bytes) if device.memory_bytes else NOTHING
        rows.add_row(device.id, str(device.accelerator), _model(device), memory, holder)
    return rows


def _model(device: Device) -> str:
    """Return what a device is: ``NVIDIA A100``, ``a slice of GPU-5ae1, NVIDIA A100``, ``A100 (emulated)``."""
    model = plain(device.model) or NOTHING
    if device.emulated:
        return "emulated" if model in (NOTHING, "emulated") else f"{model} (emulated)"
    return f"a slice of {plain(device.parent)[:_SHORT_UUID]}, {model}" if device.parent else model


def _nodes(place: Place) -> Table:
    rows = table("NODE", "DEVICES", "CPUS", "MEMORY", "STATE")
    for node in place.nodes:
        state = Text("ready") if node.ready else Text("not ready", style="red")
        devices = counts(node.devices) if node.devices else NOTHING
        rows.add_row(plain(node.name), devices, f"{node.cpus:g}", format_bytes(node.memory_bytes), state)
    return rows


def _queue(queue: QueueStatus, workloads: Mapping[str, Workload], short: Mapping[str, str]) -> Iterator[RenderableType]:
    told = [*_shares(queue), f"{len(queue.holders)} hold devices", f"{len(queue.waiters)} wait"]
    yield Text(f"queue {plain(queue.name)}: {', '.join(told)}", style="bold")
    if not queue.holders and not queue.waiters:
        return
    now = datetime.now(UTC)
    rows = table("#", "WORKLOAD", "PHASE", "ASKS FOR", "SINCE", "WHY")
    for id in (*queue.holders, *queue.waiters):
        workload = workloads.get(id)
        if workload is None:  # another account's, or gone since
            rows.add_row(NOTHING, plain(id), NOTHING, NOTHING, NOTHING, "")
            continue
        spec, stands = workload.spec, workload.status
        position = str(stands.position) if stands.phase is Phase.QUEUED and stands.position else NOTHING
        since = age(stands.started or stands.created, now)
        who = _named(id, workloads, short)
        rows.add_row(position, who, phase_text(stands.phase), size(spec.resources, spec.replicas), since, why(workload))
    yield rows


def _shares(queue: QueueStatus) -> Iterator[str]:
    """Yield what is used of each share: ``5 of 4 nvidia.com/gpu (1 borrowed)``."""
    for resource, quota in queue.quotas.items():
        used, borrowed = queue.used.get(resource, 0.0), queue.borrowed.get(resource, 0.0)
        extra = f" ({share(resource, borrowed)} borrowed)" if borrowed else ""
        yield f"{share(resource, used)} of {share(resource, quota.nominal)} {plain(resource)}{extra}"


def _named(id: str, workloads: Mapping[str, Workload], short: Mapping[str, str]) -> Text:
    workload, shown = workloads.get(id), short.get(id, plain(id))
    if workload is None or workload.spec.name == id:
        return Text(shown)
    return Text.assemble(short_name(workload.spec.name), (f" ({shown})", "dim"))
