"""How things are said to people: times, ids, phases, sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from rich.table import Table
from rich.text import Text

from jupyter_gpu.schema import CPU, MEMORY, Phase, Resources, Workload, format_bytes

NOTHING = "-"
_PHASE_STYLES = {
    Phase.QUEUED: "yellow",
    Phase.STARTING: "cyan",
    Phase.RUNNING: "green",
    Phase.SUCCEEDED: "",
    Phase.FAILED: "red",
    Phase.CANCELLED: "dim",
}
_SHORT_ID = 8
_LONGEST_NAME = 40


def table(*headers: str) -> Table:
    """Return a table as all our tables look: columns apart by space alone, so that it can be cut and grepped."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in headers:
        made.add_column(header, overflow="fold")
    return made


def plain(text: str) -> str:
    """Return a name as it may be shown: in one line, and with nothing that a terminal would obey."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def short_name(text: str) -> str:
    """Return a name as it may be shown in a table: as `plain`, and cut where it would push the rest aside."""
    name = plain(text)
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def paragraph(text: str) -> str:
    """Return a text of several lines as it may be shown: as `plain`, line by line."""
    return "\n".join(map(plain, text.splitlines()))


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return what each id is shown as: the start of a UUID, as long as it takes to tell it from the others; others whole."""
    known = set(ids)
    shown = {id: plain(id) for id in known}
    open_ids, length = {id for id in known if _is_uuid(id)}, _SHORT_ID
    while open_ids:
        starts = Counter(id[:length] for id in known)
        told = {id for id in open_ids if starts[id[:length]] == 1 or length >= len(id)}
        shown |= {id: id[:length] for id in told}
        open_ids, length = open_ids - told, length + 4
    return shown


def phase_text(phase: Phase) -> Text:
    """Return a phase in its colour."""
    return Text(phase.value, style=_PHASE_STYLES[phase])


def size(resources: Resources, replicas: int = 1) -> str:
    """Return what is asked for, in short: ``2 nvidia.com/gpu``, ``4 x 1 nvidia.com/gpu (A100)``."""
    product = f" ({plain(resources.product)})" if resources.product else ""
    one = f"{resources.gpus} {resources.accelerator}{product}" if resources.gpus else "no device"
    return one if replicas == 1 else f"{replicas} x {one}"


def counts(devices: Mapping[str, int]) -> str:
    """Return numbers of devices by their resource names."""
    return ", ".join(f"{count} {resource}" for resource, count in sorted(devices.items())) or "no devices"


def amounts(held: Mapping[str, int]) -> str:
    """Return amounts in the units of `Amounts`: ``2 nvidia.com/gpu, 1.5 cpu, 1 GiB memory``."""
    return ", ".join(
        f"{format_bytes(amount)} memory" if resource == MEMORY else f"{amount / 1000 if resource == CPU else amount:g} {resource}"
        for resource, amount in sorted(held.items())
    )


def share(resource: str, amount: float | None) -> str:
    """Return an amount in the units of a `Quota`, without the resource's name."""
    if amount is None:
        return NOTHING
    return format_bytes(int(amount)) if resource == MEMORY else f"{amount:g}"


def devices_of(workload: Workload) -> list[str]:
    """Return the ids of all devices that a Workload holds."""
    return [device for replica in workload.status.replicas for device in replica.devices]


def why(workload: Workload) -> str:
    """Return the sentence behind a Workload's phase, in one line; empty where there is nothing to say."""
    reason = workload.status.reason
    return plain(reason.message.splitlines()[0]) if reason and reason.message else ""


def age(since: datetime, now: datetime) -> str:
    """Return how long ago something was: ``5s``, ``3m``, ``2h10m``, ``4d``."""
    return span((now - since).total_seconds())


def span(seconds: float) -> str:
    """Return how long something takes: ``5s``, ``3m``, ``2h10m``, ``4d``."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86_400}d"


def local_time(time: datetime) -> str:
    """Return a time on the reader's own clock."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def utc_time(time: datetime) -> str:
    """Return a time as machines read it, to the millisecond."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def facts(values: Mapping[str, Any]) -> str:
    """Return facts in one line: ``exit_code=3, signal=SIGKILL``."""
    return plain(", ".join(f"{name}={value}" for name, value in values.items()))


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
