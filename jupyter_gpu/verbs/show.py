"""``show``: everything about one Workload."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jupyter_gpu.schema import LogLine, Phase, Workload, format_bytes
from jupyter_gpu.verbs import samples
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.story import Told, story
from jupyter_gpu.verbs.words import age, facts, local_time, paragraph, phase_text, plain, size, span, utc_time

_LONGEST_COMMAND = 1000


@verb("show")
@click.argument("id", metavar="WORKLOAD")
def show(asking: Asking, id: str) -> Answer:
    """Show everything about one workload.

    A WORKLOAD is an id, the start of one, or a name.
    """
    gpu = asking.gpu
    with asking.busy("reading its story"):
        workload = gpu.get(id)
        id = workload.spec.id
        reports = gpu.connection.call(lambda services: services.workloads.reports(id)).result()
        events = gpu.connection.call(lambda services: services.workloads.story(id)).result()
        told = story(workload, events, reports)
    newest = samples.newest(reports)
    data = {
        "workload": workload.model_dump(mode="json"),
        "samples": [samples.as_data(line) for _, line in sorted(newest.items())],
        "story": [_as_data(one) for one in told],
    }
    return Answer(data, Group(*_parts(workload, told, newest)))


def _as_data(one: Told) -> dict[str, Any]:
    return {
        "time": utc_time(one.time),
        "attempt": one.attempt,
        "event": one.what,
        "code": one.code,
        "message": one.message,
        "lasted_s": one.lasted_s,
    }


def _parts(workload: Workload, told: Sequence[Told], newest: Mapping[int, LogLine]) -> Iterator[RenderableType]:
    spec = workload.spec
    yield Text.assemble((plain(spec.name), "bold"), f"  {plain(spec.id)}")
    facts_of_it = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts_of_it.add_column(style="dim")
    facts_of_it.add_column(overflow="fold")
    for name, value in (*_stands(workload), *_uses(workload, newest), *_asked(workload)):
        facts_of_it.add_row(name, value)
    yield Padding(facts_of_it, (0, 0, 0, 2), expand=False)
    yield Text("story", style="bold")
    yield Padding(_story(told), (0, 0, 0, 2), expand=False)


def _story(told: Sequence[Told]) -> Table:
    rows = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_column(style="dim", no_wrap=True, min_width=1)  # rich folds the one before an empty column where it need not
    attempt = 1
    for one in told:
        if one.attempt != attempt:
            attempt = one.attempt
            rows.add_row("", Text(f"attempt {attempt}", style="bold"), "", "")
        what = phase_text(Phase(one.what)) if one.is_phase else Text("")
        rows.add_row(
            local_time(one.time),
            what,
            Text(paragraph(one.message)),
            f"for {span(one.lasted_s)}" if one.lasted_s is not None else "",
        )
    return rows


def _uses(workload: Workload, newest: Mapping[int, LogLine]) -> Iterator[tuple[str, RenderableType]]:
    for rank, line in sorted(newest.items()):
        ago = "" if workload.status.phase.is_final else f" ({age(line.time, datetime.now(UTC))} ago)"
        name = "used last" if workload.status.phase.is_final else "uses"
        of = f" of replica {rank}" if workload.spec.replicas > 1 else ""
        yield name + of, Text(samples.as_text(line, workload.spec.resources) + ago)


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
        yield "reason", Text(f"{paragraph(status.reason.message)} ({status.reason.code})")
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
    command = plain(shlex.join(spec.command))
    yield "command", Text(command if len(command) <= _LONGEST_COMMAND else command[:_LONGEST_COMMAND] + "…")
    if environment.working_directory:
        yield "folder", Text(plain(environment.working_directory))
    if environment.variables:
        yield "variables", Text(", ".join(sorted(environment.variables)))
