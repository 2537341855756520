"""``usage``: who used what, and how much of it sat idle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click
from rich.console import Group
from rich.text import Text

from jupyter_gpu.schema import format_bytes
from jupyter_gpu.services.usage import By, UsageSum
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.times import since as time
from jupyter_gpu.verbs.words import NOTHING, local_time, plain, short_ids, table, utc_time

_HOUR_S = 3600.0


@verb("usage")
@click.option("--by", type=click.Choice([by.value for by in By]), default=By.QUEUE.value, help="What a row is for; else queue.")
@click.option(
    "--since", type=time, metavar="TIME", help="Only what was used since then: 7d, 12h, 2030-01-31; else all that is known."
)
def usage(asking: Asking, by: str, since: datetime | None) -> Answer:
    """Show who used what.

    IDLE is the part of the time in which devices were seen to do nothing; time that was not measured counts for neither side.
    """
    with asking.busy("adding it up"):
        sums = asking.gpu.usage(since=since, by=By(by))
    name = asking.gpu.connection.name
    data = {
        "place": name,
        "by": by,
        "since": utc_time(since) if since else None,
        "usage": [one.model_dump(mode="json") for one in sums],
    }
    period = f"since {local_time(since)}" if since else "of all that it still knows"
    if not sums:
        return Answer(data, Text(f"nothing was used in {name} {period}"))
    return Answer(data, Group(Text(f"{name}, {period}", style="dim"), _table(sums, By(by))))


def _table(sums: Sequence[UsageSum], by: By) -> Group:
    rows = table(
        by.value.upper(),
        "DEVICE",
        *(() if by is By.WORKLOAD else ("WORKLOADS",)),
        "GPU HOURS",
        "IDLE",
        "CPU HOURS",
        "PEAK MEMORY",
    )
    short = short_ids(one.id for one in sums if one.id)
    for one in sums:
        shown = plain(one.name) or NOTHING
        if one.id and one.id != one.name:
            shown += f" ({short[one.id]})"
        rows.add_row(shown, *_figures(one, by))
    return Group(rows)


def _figures(one: UsageSum, by: By) -> list[str]:
    has_device = bool(one.resource)
    return [
        one.resource or NOTHING,
        *(() if by is By.WORKLOAD else (str(one.workloads),)),
        f"{one.device_seconds / _HOUR_S:.2f}" if has_device else NOTHING,
        NOTHING if one.idle_share is None else f"{one.idle_share:.0%}",
        f"{one.cpu_seconds / _HOUR_S:.2f}",
        format_bytes(one.peak_memory_bytes) if one.peak_memory_bytes else NOTHING,
    ]
