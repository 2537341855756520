"""``cancel``: end Workloads, waiting or running."""

from __future__ import annotations

import click
from rich.console import Group
from rich.text import Text

from jupyter_gpu.connection import Gpu
from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import Phase, Workload
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.logs import ending
from jupyter_gpu.verbs.words import plain


@verb("cancel")
@click.argument("ids", metavar="WORKLOAD...", nargs=-1, required=True)
@click.option("--wait", "-w", is_flag=True, help="Return when they have ended and their devices are free.")
def cancel(asking: Asking, ids: tuple[str, ...], wait: bool) -> Answer:
    """End workloads, waiting or running.

    A WORKLOAD is an id, the start of one, or a name. If one of them can't be found, none is ended.
    """
    gpu = asking.gpu
    with asking.busy("cancelling"):
        meant = gpu.connection.call(lambda services: services.workloads.find_all(ids)).result()
        found = {workload.spec.id: workload for workload in meant}
        gpu.connection.call(lambda services: services.workloads.cancel_all(list(found.values()))).result()
    if wait:
        with asking.busy("waiting for the end"):
            now = {id: _ended(gpu, workload) for id, workload in found.items()}
    else:
        now = found | {workload.spec.id: workload for workload in gpu.list(ended=True) if workload.spec.id in found}
    data = [
        {"id": id, "name": was.spec.name, "was": was.status.phase.value, "phase": now[id].status.phase.value}
        for id, was in found.items()
    ]
    return Answer({"cancelled": data}, Group(*(Text(_told(was, now[id])) for id, was in found.items())))


def _told(was: Workload, now: Workload) -> str:
    name = plain(was.spec.name) if was.spec.name == was.spec.id else f"{plain(was.spec.name)} ({plain(was.spec.id)})"
    if was.status.phase.is_final:
        return f"{name} had ended before: {was.status.phase.value}"
    place = f", number {was.status.position} in line" if was.status.position else ""
    if now.status.phase.is_final:
        return f"{ending(now).replace(plain(was.spec.name), name, 1)} (was {was.status.phase.value}{place})"
    return f"{name} was told to end (is {now.status.phase.value}; it has {was.spec.grace_s:g} s for that)"


def _present(gpu: Gpu, workload: Workload) -> Workload:
    try:
        return gpu.get(workload.spec.id)
    except NotFoundError:  # its story was short
        return workload


def _ended(gpu: Gpu, workload: Workload) -> Workload:
    with gpu.follow(workload.spec.id) as changes:
        for change in changes:
            workload = change
    return workload if workload.status.phase is not Phase.QUEUED else _present(gpu, workload)
