"""``list``: my Workloads, one a line."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from jupyter_gpu.schema import Kind, Phase, Selector, Workload
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.words import NOTHING, age, devices_of, phase_text, plain, short_ids, short_name, size, table, why


@verb("list")
@click.option("--all", "-a", "ended", is_flag=True, help="Those that have ended too.")
@click.option("--queue", "-q", metavar="NAME", help="Only those of this queue.")
@click.option("--kind", "-k", type=click.Choice([kind.value for kind in Kind]), help="Only those of this kind.")
def listing(asking: Asking, ended: bool, queue: str | None, kind: str | None) -> Answer:
    """List my workloads.

    Those that run come first, then those that wait, in their order, then, with --all, those that have ended.
    """
    selector = Selector(kinds=frozenset({Kind(kind)}) if kind else None, queue=queue)
    with asking.busy("looking at the workloads"):
        workloads = asking.gpu.list(ended=ended, selector=selector)
    name = asking.gpu.connection.name
    data = {"place": name, "workloads": [workload.model_dump(mode="json") for workload in workloads]}
    if workloads:
        return Answer(data, _table(workloads))
    narrowed = " that fits" if queue or kind else ""
    hint = "" if ended else f"; `{asking.program} list --all` shows those that have ended"
    return Answer(
        data, Text(f"no workload{narrowed} runs or waits in {name}{hint}" if not ended else f"no workload{narrowed} in {name}")
    )


def _table(workloads: list[Workload]) -> Table:
    now = datetime.now(UTC)
    short = short_ids(workload.spec.id for workload in workloads)
    rows = table("ID", "NAME", "KIND", "PHASE", "QUEUE", "ASKS FOR", "AGE", "DEVICES", "WHY")
    for workload in workloads:
        spec, status = workload.spec, workload.status
        phase = phase_text(status.phase)
        if status.phase is Phase.QUEUED and status.position:
            phase.append(f" #{status.position}")
        rows.add_row(
            short[spec.id],
            short_name(spec.name),
            spec.kind.value,
            phase,
            plain(spec.queue),
            size(spec.resources, spec.replicas),
            age(status.created, now),
            " ".join(devices_of(workload)) or NOTHING,
            why(workload),
        )
    return rows
