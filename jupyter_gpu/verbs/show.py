"""``show``: everything about one Workload."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jupyter_gpu.schema import Phase, Workload, format_bytes
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.story import Event, story
from jupyter_gpu.verbs.words import age, facts, local_time, phase_text, plain, size, utc_time


@verb("show")
@click.argument("id", metavar="WORKLOAD")
def show(asking: Asking, id: str) -> Answer:
    """Show everything about one workload.

    A WORKLOAD is an id, the start of one, or a name.
    """
    with asking.busy("reading its story"):
        workload = asking.gpu.get(id)
        reports = asking.gpu.connection.call(lambda services: services.workloads.reports(workload.spec.id)).result()
    events = story(workload, reports)
    told = [{"time": utc_time(event.time), "event": event.what, "message": event.message} for event in events]
    return Answer({"workload": workload.model_dump(mode="json"), "story": told}, Group(*_parts(workload, events)))


def _parts(workload: Workload, events: Sequence[Event]) -> Iterator[RenderableType]:
    spec = workload.spec
    yield Text.assemble((plain(spec.name), "bold"), f"  {plain(spec.id)}")
    facts_of_it = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts_of_it.add_column(style="dim")
    facts_of_it.add_column(overflow="fold")
    for name, value in (*_stands(workload), *_asked(workload)):
        facts_of_it.add_row(name, value)
    yield Padding(facts_of_it, (0, 0, 0, 2), expand=False)
    yield Text("story", style="bold")
    told = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    told.add_column(style="dim", no_wrap=True)
    told.add_column(overflow="fold")
    for event in events:
        told.add_row(local_time(event.time), Text(event.message))
    yield Padding(told, (0, 0, 0, 2), expand=False)


def _stands(workload: Workload) -> Iterator[tuple[str, RenderableType]]:
    status = workload.status
    phase = phase_text(status.phase)
    if status.ready:
        phase.append(", ready")
    if status.phase is Phase.QUEUED and status.position:
        phase.append(f", number {status.position} in line")
    if not status.phase.is_final:
        phase.append(f" for {age(status.started or status.created, datetime.now(UTC))}")
    yield "phase", phase
    if status.reason:
        yield "reason", Text(f"{status.reason.message} ({status.reason.code})")
        if status.reason.facts:
            yield "facts", Text(facts(status.reason.facts))
    if status.attempt > 1:
        yield "attempt", str(status.attempt)
    if status.started and status.ended:
        yield "ran", age(status.started, status.ended)
    for replica in status.replicas:
        where = f" on {plain(replica.node)}" if replica.node else ""
        held = ", ".join(replica.devices)
        if workload.spec.replicas > 1:
            yield f"replica {replica.rank}", Text.assemble(phase_text(replica.phase), f": {held or 'no device'}{where}")
        elif held or where:
            yield ("had" if status.phase.is_final else "devices"), Text((held or "no device") + where)


def _asked(workload: Workload) -> Iterator[tuple[str, RenderableType]]:
    spec, environment = workload.spec, workload.spec.environment
    yield "kind", spec.kind.value + (f", profile {plain(spec.profile)}" if spec.profile else "")
    yield "owner", Text(plain(spec.owner) or "-")
    yield "queue", Text(plain(spec.queue) + (f", priority {spec.priority}" if spec.priority else ""))
    resources = spec.resources
    yield "asks for", f"{size(resources, spec.replicas)}, {resources.cpus:g} CPU, {format_bytes(resources.memory_bytes)}"
    if environment.image:
        yield "image", Text(plain(environment.image))
    if environment.interpreter:
        yield "python", Text(plain(environment.interpreter))
    yield "command", Text(plain(shlex.join(spec.command)))
    if environment.working_directory:
        yield "folder", Text(plain(environment.working_directory))
    if environment.variables:
        yield "variables", Text(", ".join(sorted(environment.variables)))
