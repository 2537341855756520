"""``why``: why a Workload waits or has ended, or what would become of one, before there is any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import (
    DEFAULT_QUEUE,
    Basis,
    Forecast,
    InTheWay,
    KernelOptions,
    Kind,
    Phase,
    Profile,
    Resources,
    Start,
    Workload,
    WorkloadSpec,
)
from jupyter_gpu.schema.explaining import checked
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.priority import HIGHEST, LOWEST
from jupyter_gpu.verbs.times import duration
from jupyter_gpu.verbs.words import (
    NOTHING,
    age,
    amounts,
    facts,
    paragraph,
    phase_text,
    plain,
    short_ids,
    short_name,
    size,
    span,
    table,
)

_SHOWN = 5


@verb("why")
@click.argument("id", metavar="[WORKLOAD]", required=False)
@click.option("--gpus", type=click.IntRange(0), metavar="N", help="Devices of each replica; 1 unless a profile says otherwise.")
@click.option("--accelerator", metavar="NAME", help="Their kind, like nvidia.com/gpu or nvidia.com/mig-1g.10gb.")
@click.option("--product", metavar="TEXT", help="What their model must contain, like A100.")
@click.option("--cpus", type=click.FloatRange(0, min_open=True), metavar="N", help="Cores of each replica.")
@click.option("--memory", metavar="SIZE", help="Of each replica, like 16GiB.")
@click.option("--queue", "-q", metavar="NAME", help="The queue it would be in.")
@click.option("--priority", type=click.IntRange(LOWEST, HIGHEST), metavar="N", help="Higher starts first.")
@click.option("--replicas", type=click.IntRange(1, 10_000), metavar="N", help="How many of that size; else one.")
@click.option("--as-they-fit", is_flag=True, help="The replicas need not start together, as in a sweep.")
@click.option("--max-runtime", type=duration, metavar="TIME", help="It would be ended after that: 2h, 1h30m, 7d.")
@click.option("--profile", metavar="NAME", help="A kernel of this profile, in its place; the other options change it.")
def why(asking: Asking, /, id: str | None, **wish: Any) -> Answer:
    """Tell why a workload waits or has ended; or, without one, whether it would start now.

    A WORKLOAD is an id, the start of one, or a name. Without it the options say what is asked for, and nothing is created.
    """
    given = {name: value for name, value in wish.items() if value is not None and value is not False}  # 0 is something
    if id is not None:
        if given:
            option = next(iter(given)).replace("_", "-")
            raise InvalidRequestError(f"--{option} is for something that is not there yet; leave it out, or leave {id!r} out")
        return _of_workload(asking, id)
    if not given:
        raise InvalidRequestError("say what: a WORKLOAD, or a size like --gpus 2, or a --profile")
    spec = _spec(asking, **given)
    with asking.busy("looking at the queues"):
        forecast = asking.gpu.connection.call(lambda services: services.queues.forecast(spec)).result()
    data = {"spec": spec.model_dump(mode="json"), "forecast": forecast.model_dump(mode="json")}
    heading = Text.assemble((size(spec.resources, spec.replicas), "bold"), f" in queue {plain(spec.queue)}")
    return Answer(data, Group(heading, *_of_forecast(forecast)))


# ---- of something that is not there yet


def _spec(asking: Asking, profile: str | None = None, **given: Any) -> WorkloadSpec:
    as_they_fit, runtime = given.pop("as_they_fit", False), given.pop("max_runtime", None)
    fields: dict[str, Any] = {"id": "forecast", "name": "forecast", "kind": Kind.BATCH, "command": ("true",)}
    fields |= {"start": Start.AS_THEY_FIT if as_they_fit else Start.TOGETHER, "replicas": given.pop("replicas", 1)}
    fields |= {"max_runtime_s": runtime.total_seconds() if isinstance(runtime, timedelta) else None}
    if profile is not None:
        if as_they_fit or fields["replicas"] > 1:
            raise InvalidRequestError("a profile's kernel is one program: leave --replicas and --as-they-fit out, or the profile")
        found = asking.site.profile(profile)
        asking.place = asking.place or found.place
        fields |= {"kind": Kind.KERNEL, "profile": profile, "environment": found.environment}
        fields |= {"queue": given.pop("queue", found.queue), "priority": given.pop("priority", found.priority)}
        fields["resources"] = _within(profile, found, given)
    else:
        fields |= {"queue": given.pop("queue", DEFAULT_QUEUE), "priority": given.pop("priority", 0)}
        fields["resources"] = _resources(given)
    spec: WorkloadSpec = checked(WorkloadSpec, fields, "")
    return spec


def _resources(given: dict[str, Any]) -> Resources:
    memory = {"memory_bytes": given.pop("memory")} if "memory" in given else {}
    resources: Resources = checked(Resources, {"gpus": 1} | given | memory, "")
    return resources


def _within(name: str, profile: Profile, given: dict[str, Any]) -> Resources:
    options: KernelOptions = checked(KernelOptions, given, "")
    try:
        return options.resources(name, profile)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


# ---- of a Workload


def _of_workload(asking: Asking, id: str) -> Answer:
    gpu = asking.gpu
    with asking.busy("looking at the queues"):
        workload = gpu.get(id)
        forecast = gpu.connection.call(lambda services: services.queues.why(workload)).result()
    data = {"workload": workload.model_dump(mode="json"), "forecast": forecast.model_dump(mode="json") if forecast else None}
    return Answer(data, Group(*_stands(workload, forecast, asking.program)))


def _stands(workload: Workload, forecast: Forecast | None, program: str) -> Iterator[RenderableType]:
    spec, status = workload.spec, workload.status
    since = status.ended or status.started or status.created
    attempt = f", attempt {status.attempt}" if status.attempt > 1 else ""
    ago = f"{age(since, datetime.now(UTC))} ago" if status.phase.is_final else f"for {age(since, datetime.now(UTC))}"
    yield Text.assemble((plain(spec.name), "bold"), " ", phase_text(status.phase), f" {ago}{attempt}")
    if forecast is not None and forecast.basis is Basis.EXACT:
        yield from _of_forecast(forecast, waits=True)
        return
    if status.phase is Phase.QUEUED and status.position:
        yield Text(f"number {status.position} in line of queue {plain(spec.queue)}")
    if status.reason:
        yield Text(f"{paragraph(status.reason.message)} ({status.reason.code})")
        if status.reason.facts:
            yield Text(facts(status.reason.facts), style="dim")
    elif status.phase is Phase.RUNNING:
        yield Text("it has what it asked for, and nothing is wrong with it")
    if forecast is not None:
        yield from _of_forecast(forecast, waits=True)
    if status.phase.is_final and status.started:
        name = plain(spec.id)
        yield Text(f"`{program} logs {name}` has what it said, `{program} show {name}` its story", style="dim")


# ---- a forecast


def _of_forecast(forecast: Forecast, *, waits: bool = False) -> Iterator[RenderableType]:
    yield _answer(forecast, waits)
    if forecast.basis is Basis.ESTIMATE:
        yield Text("this is an estimate: another scheduler decides there", style="dim")
    if rows := list(_figures(forecast)):
        told = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        told.add_column(style="dim")
        told.add_column(overflow="fold")
        for row in rows:
            told.add_row(*row)
        yield Padding(told, (0, 0, 0, 2), expand=False)
    for heading, those in (
        ("in front of it" if waits else "would be in front of it", forecast.ahead),
        ("hold what is short", forecast.holders),
        ("is told to yield" if waits else "would be told to yield", forecast.preempts),
    ):
        if those:
            yield Text(heading, style="bold")
            yield Padding(_those(those), (0, 0, 0, 2), expand=False)


def _answer(forecast: Forecast, waits: bool) -> Text:
    message = plain(forecast.message)
    if forecast.starts_now:
        return Text("it starts at any moment" if waits else message, style="green")
    if forecast.never:
        return Text(f"it can never start: {message}", style="red")
    if waits and forecast.reason is not None:  # the sentence of a forecast is for what is not there yet
        message = f"{plain(forecast.reason.message)} ({forecast.reason.code})"
    return Text(message, style="yellow")


def _figures(forecast: Forecast) -> Iterator[tuple[str, str]]:
    if forecast.position:
        yield "in line", f"number {forecast.position} of its queue"
    if forecast.short:
        yield "short of", amounts(forecast.short)
    if forecast.within_s is not None and not forecast.starts_now:
        by = "when those that yield are gone" if forecast.preempts else "by the limits of those in front of it"
        yield "at the latest", f"in {span(forecast.within_s)}, {by}"
    elif forecast.reason is not None:
        yield "at the latest", "can't be told: not all in front of it have a limit (max_runtime_s)"


def _those(those: Sequence[InTheWay]) -> RenderableType:
    short = short_ids(one.id for one in those)
    rows = table("WORKLOAD", "OWNER", "QUEUE", "PRIORITY", "HOLDS", "STAYS AT MOST")
    for one in those[:_SHOWN]:
        rows.add_row(
            short[one.id] if one.name == one.id else f"{short_name(one.name)} ({short[one.id]})",
            plain(one.owner) or NOTHING,
            plain(one.queue),
            str(one.priority),
            amounts(one.holds) or NOTHING,
            NOTHING if one.ends_within_s is None else span(one.ends_within_s),
        )
    more = len(those) - _SHOWN
    return Group(rows, Text(f"and {more} more", style="dim")) if more > 0 else rows
