"""``check``: what works here, and what is off."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.console import Group
from rich.text import Text

from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.verbs import findings
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.findings import Finding, State
from jupyter_gpu.verbs.words import table

_STYLES = {State.OK: "green", State.NOTE: "yellow", State.OFF: "bold red"}


@verb("check")
@click.argument("only", metavar="[PLACE]", required=False)
def check(asking: Asking, only: str | None) -> Answer:
    """Tell what works here and what is off.

    It looks at one PLACE, or at all, and starts nothing; the state folder of a local place is made if it is not there yet. Exit
    code 1 if something is off.
    """
    with asking.busy("checking"):
        found = list(_examine(asking, only or asking.place))
    off = [one for one in found if one.state is State.OFF]
    data = {
        "ok": not off,
        "checks": [{"subject": one.subject, "state": one.state.value, "message": one.message} for one in found],
    }
    rows = table("STATE", "SUBJECT", "FOUND")
    for one in found:
        rows.add_row(Text(one.state.value, style=_STYLES[one.state]), one.subject, Text(one.message))
    verdict = f"{len(off)} of {len(found)} are off" if off else "nothing is off"
    return Answer(data, Group(rows, "", Text(verdict, style="bold")), exit_code=1 if off else 0)


def _examine(asking: Asking, place: str | None) -> Iterator[Finding]:
    yield from findings.of_python()
    yield from findings.of_driver()
    yield from findings.of_files()
    try:
        site = asking.site
    except InvalidRequestError as error:
        yield Finding("configuration", State.OFF, str(error))
        return
    for name in [site.place(place)[0]] if place else site.places:
        yield from findings.of_place(name, site)
    if not place:
        yield from findings.of_lost_profiles(site)
    yield from findings.of_kernelspecs(site)
