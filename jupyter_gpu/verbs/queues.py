"""``queues``: how they stand, and how they are set."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import CPU, MEMORY, Place, QueueSet, QueueStatus
from jupyter_gpu.services.queues import Change, Difference, lent
from jupyter_gpu.verbs import queue_file
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.status import missing_text
from jupyter_gpu.verbs.words import NOTHING, plain, share, table

_STYLES = {Change.ADDED: "green", Change.REMOVED: "red", Change.CHANGED: "yellow", Change.KEPT: "dim"}


@click.group("queues")
def queues() -> None:
    """Look at the queues, and set them."""


@verb("show")
def show(asking: Asking) -> Answer:
    """Show each queue's share of each resource, and what is used of it.

    BORROWED is what it holds above its own share; LENT the part of its own share that it could not have now, for others use it.
    """
    with asking.busy("looking at the queues"):
        place = asking.gpu.place()
    given_away = lent(place)
    data = {
        "place": place.name,
        "ours": place.decides,
        "queues": [{**one.model_dump(mode="json"), "lent": given_away.get(one.name, {})} for one in place.queues],
        "queue_set": place.queue_set.model_dump(mode="json"),
    }
    return Answer(data, Group(*_parts(place, given_away)))


@verb("apply")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="Change nothing; only say what would be changed.")
def apply(asking: Asking, file: str, dry_run: bool) -> Answer:
    """Set the queues of a place, all of them at once.

    FILE is YAML or JSON, or - for what comes in on stdin. Queues that are there and not in it are removed, unless they have work.
    """
    wanted = queue_file.read(_text(file), "stdin" if file == "-" else file)
    with asking.busy("setting the queues"):
        changes = asking.gpu.apply_queues(wanted, dry_run=dry_run)
        notes = list(_notes(asking, wanted))
    data = {
        "place": asking.gpu.connection.name,
        "dry_run": dry_run,
        "changes": [one.model_dump(mode="json") for one in changes],
        "notes": notes,
    }
    return Answer(data, Group(*_told(changes, dry_run), *(Text(f"note: {note}", style="yellow") for note in notes)))


for _command in (show, apply):
    queues.add_command(_command)


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, ValueError) as error:  # ValueError: bytes that are no UTF-8
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidRequestError(f"{'stdin' if file == '-' else file} can't be read: {why}") from error


# ---- what is shown


def _parts(place: Place, given_away: Mapping[str, Mapping[str, float]]) -> Iterator[RenderableType]:
    yield Text.assemble((plain(place.name), "bold"), f": {_origin(place)}")
    for missing in place.missing:
        if "queue" in missing.what.lower():
            yield Text(f"note: {missing_text(missing)}", style="yellow")
    yield ""
    yield _table(place, given_away)


def _origin(place: Place) -> str:
    if not place.decides:
        return "its queues are set by those who run it, and are only shown here"
    by_file = place.queue_set != QueueSet() and place.queue_set.queues != QueueSet.default(place.capacity).queues
    if not by_file:
        return "no queues are set, so one has everything; `jupyter gpu queues apply FILE` sets them"
    return f"smaller work may overtake the first in line for {place.queue_set.starve_after_s:g} s"


def _table(place: Place, given_away: Mapping[str, Mapping[str, float]]) -> Table:
    rows = table("QUEUE", "RESOURCE", "SHARE", "USED", "BORROWED", "LENT", "MAY BORROW", "MAY LEND", "HOLD", "WAIT")
    for depth, what in _tree(place):
        indent = "  " * depth
        if isinstance(what, str):
            rows.add_row(Text(f"{indent}cohort {plain(what)}", style="bold"))
            continue
        resources = list(what.quotas) or [*what.used] or [""]
        for index, resource in enumerate(resources):
            first = index == 0
            rows.add_row(
                indent + plain(what.name) if first else "",
                plain(resource) or NOTHING,
                *_figures(what, resource, given_away.get(what.name, {})),
                str(len(what.holders)) if first else "",
                str(len(what.waiters)) if first else "",
            )
    return rows


def _figures(queue: QueueStatus, resource: str, given_away: Mapping[str, float]) -> list[str]:
    quota = queue.quotas.get(resource)
    if quota is None:
        return [NOTHING, share(resource, queue.used.get(resource)), NOTHING, NOTHING, NOTHING, NOTHING]
    shared = queue.cohort is not None
    return [
        share(resource, quota.nominal),
        share(resource, queue.used.get(resource, 0)),
        share(resource, queue.borrowed.get(resource, 0)) if shared else NOTHING,
        share(resource, given_away.get(resource, 0)) if shared else NOTHING,
        _limit(resource, quota.borrowing_limit) if shared else NOTHING,
        _limit(resource, quota.lending_limit) if shared else NOTHING,
    ]


def _limit(resource: str, limit: float | None) -> str:
    return "all" if limit is None else share(resource, limit)


def _tree(place: Place) -> Iterator[tuple[int, str | QueueStatus]]:
    """Yield queues below their cohorts, cohorts below their parents; those without stand first."""
    parents: dict[str, str | None] = {one.cohort: None for one in place.queues if one.cohort}
    parents |= {one.name: one.parent for one in place.queue_set.cohorts}
    parents |= {parent: None for parent in parents.values() if parent and parent not in parents}

    def below(cohort: str | None, depth: int) -> Iterator[tuple[int, str | QueueStatus]]:
        yield from ((depth, one) for one in place.queues if one.cohort == cohort)
        for name in sorted(name for name, parent in parents.items() if parent == cohort):
            yield depth, name
            yield from below(name, depth + 1)

    yield from below(None, 0)


# ---- what changed


def _notes(asking: Asking, wanted: QueueSet) -> Iterator[str]:
    """Yield what a set of queues allows and its author may not have meant."""
    if not wanted.queues:
        return
    name, names = asking.gpu.connection.name, {queue.name for queue in wanted.queues}
    for profile, content in asking.site.profiles.items():
        if asking.site.place(content.place)[0] == name and content.queue not in names:
            yield f"kernels of profile {profile!r} will be refused: its queue is {content.queue!r}, which is not among these"
    shares: Counter[str] = Counter()
    for quotas in (*(queue.quotas for queue in wanted.queues), *(cohort.quotas for cohort in wanted.cohorts)):
        shares.update({resource: int(quota.nominal) for resource, quota in quotas.items() if resource not in (CPU, MEMORY)})
    for resource, count in asking.gpu.place().capacity.items():
        if shares[resource] > count:
            yield f"the shares add up to {shares[resource]} {resource}, and {name} has {count}: not all can have theirs at once"


def _told(changes: Iterable[Difference], dry_run: bool) -> Iterator[RenderableType]:
    rows = table("CHANGE", "WHAT", "")
    counts: Counter[Change] = Counter()
    for one in changes:
        counts[one.change] += 1
        what = one.name if one.kind == "setting" else f"{one.kind} {one.name}"
        rows.add_row(Text(one.change.value, style=_STYLES[one.change]), plain(what), Text("\n".join(map(plain, one.details))))
    yield rows
    yield ""
    numbers = ", ".join(f"{count} {change.value}" for change in Change if (count := counts[change])) or "nothing"
    if not any(count for change, count in counts.items() if change is not Change.KEPT):
        yield Text(f"nothing {'would change' if dry_run else 'changed'}", style="bold")
    else:
        yield Text(f"would be: {numbers}; nothing was changed (--dry-run)" if dry_run else f"set: {numbers}", style="bold")
