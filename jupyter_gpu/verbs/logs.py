"""``logs``: what a Workload's replicas said, and what they say."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import click
from rich.text import Text

from jupyter_gpu.connection import Gpu
from jupyter_gpu.schema import LogLine, Phase, Stream, Workload
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.times import since
from jupyter_gpu.verbs.words import plain, utc_time


@verb("logs")
@click.argument("id", metavar="WORKLOAD")
@click.option("--follow", "-f", is_flag=True, help="Go on until it ends; exit code 1 if it does not succeed.")
@click.option("--replica", type=click.IntRange(min=0), metavar="N", help="Only this one; else all.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Of this try; else of the newest.")
@click.option("--since", type=since, metavar="TIME", help="Only lines since then: 10m, 1h30m, 2030-01-31, 2030-01-31T12:00:00Z.")
@click.option("--timestamps", "-t", is_flag=True, help="Begin each line with its time (UTC).")
def logs(
    asking: Asking, id: str, follow: bool, replica: int | None, attempt: int | None, since: datetime | None, timestamps: bool
) -> Iterator[Answer]:
    """Show what a workload said.

    A WORKLOAD is an id, the start of one, or a name. What it said on stderr goes to stderr. With --json each line is an
    object, and what its replicas report of themselves is shown too.
    """
    with asking.busy("looking for it"):
        workload = asking.gpu.get(id)
    id = workload.spec.id
    waits = f"{plain(workload.spec.name)} is {workload.status.phase.value}"
    if follow and workload.status.phase in (Phase.QUEUED, Phase.STARTING):
        yield _aside(waits + (f": {workload.status.reason.message}" if workload.status.reason else ""))
    lines = asking.gpu.logs(id, replica=replica, attempt=attempt, since=since, follow=follow)
    show_rank = workload.spec.replicas > 1 and replica is None
    with asking.busy(waits if follow else "reading the log"):
        line = next(lines, None)
    while line is not None:
        yield _answer(line, timestamps, show_rank)
        line = next(lines, None)
    if follow and attempt is None:
        yield _end(asking.gpu, id)


def _answer(line: LogLine, timestamps: bool, show_rank: bool) -> Answer:
    data = line.model_dump(mode="json")
    if line.stream is Stream.REPORT:
        return Answer(data)
    head = (utc_time(line.time) + " " if timestamps else "") + (f"[{line.replica}] " if show_rank else "")
    return Answer(data, head + line.text + "\n", is_aside=line.stream is Stream.STDERR)


def _end(gpu: Gpu, id: str) -> Answer:
    workload = gpu.get(id)
    succeeded = workload.status.phase is Phase.SUCCEEDED
    return _aside(ending(workload), exit_code=0 if succeeded else 1)


def ending(workload: Workload) -> str:
    """Return how a Workload stands, in one line."""
    why = f": {workload.status.reason.message}" if workload.status.reason else ""
    return f"{plain(workload.spec.name)} {workload.status.phase.value}{why}"


def _aside(words: str, *, exit_code: int = 0) -> Answer:
    return Answer(None, Text(f"-- {words}", style="dim"), exit_code, is_aside=True)
