"""``priority``: move a Workload up or down in its line."""

from __future__ import annotations

import click
from rich.text import Text

from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import Phase
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.words import plain

LOWEST, HIGHEST = -(2**31), 2**31 - 1


@verb("priority", context_settings={"ignore_unknown_options": True})  # -5 is a number, no option
@click.argument("id", metavar="WORKLOAD")
@click.argument("number", metavar="NUMBER", type=click.IntRange(LOWEST, HIGHEST))
def priority(asking: Asking, id: str, number: int) -> Answer:
    """Give a workload another priority; higher starts first.

    A WORKLOAD is an id, the start of one, or a name. One that waits moves in its line at once; of one that runs it tells who may
    make it yield.
    """
    gpu = asking.gpu
    with asking.busy("changing the priority"):
        was = gpu.set_priority(id, number)
        try:
            now = gpu.get(was.spec.id)
        except NotFoundError:  # it ended meanwhile, and its story was short
            now = was
    data = {
        "id": was.spec.id,
        "name": was.spec.name,
        "was": was.spec.priority,
        "priority": number,
        "phase": now.status.phase.value,
        "position": now.status.position,
    }
    words = f"{plain(was.spec.name)} has priority {number}" + (
        f", not {was.spec.priority}" if was.spec.priority != number else ""
    )
    if now.status.phase is Phase.QUEUED and now.status.position:
        moved = was.status.position != now.status.position and was.status.position
        words += f"; number {now.status.position} in line" + (f" (was {was.status.position})" if moved else "")
    elif not now.status.phase.is_final:
        words += f"; it is {now.status.phase.value}"
    return Answer(data, Text(words))
