"""Queues: how they stand, what sets them, and whether something would start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from jupyter_gpu import queueing
from jupyter_gpu.backends.base import Backend
from jupyter_gpu.queueing.quotas import Tree, Usage
from jupyter_gpu.schema import (
    CPU,
    MEMORY,
    CohortSpec,
    Forecast,
    Phase,
    Place,
    QueueSet,
    QueueSpec,
    Schema,
    Workload,
    WorkloadSpec,
    format_bytes,
    units,
)


class Change(StrEnum):
    """What becomes of a queue by a new set of them."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    KEPT = "kept"


class Difference(Schema):
    """What becomes of one queue, cohort or setting by a new set of queues."""

    kind: str
    """``queue``, ``cohort`` or ``setting``."""
    name: str
    change: Change
    details: tuple[str, ...] = ()
    """One a line: ``quotas['nvidia.com/gpu'].nominal: 4 -> 2``."""


class Queues:
    """Look at the queues of a place, set them, and ask what would start."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def forecast(self, spec: WorkloadSpec) -> Forecast:
        """Return whether a Workload would start now, and if not, why, after whom and when at the latest.

        Nothing is created.

        Raises:
            InvalidRequestError: there is no such queue.
        """
        place = await self._backend.describe()
        return queueing.forecast(spec.model_copy(update={"owner": place.identity}), place)

    async def why(self, workload: Workload) -> Forecast | None:
        """Return what a QUEUED Workload waits for, as seen from its place in line.

        None if it does not wait, or where another scheduler decides and nothing that could be read stands in its way.
        """
        if workload.status.phase is not Phase.QUEUED:
            return None
        place = await self._backend.describe()
        found = queueing.forecast(workload.spec, place)
        return None if found.starts_now and not place.decides else found

    async def apply(self, queues: QueueSet, *, dry_run: bool = False) -> tuple[Difference, ...]:
        """Set the queues of the place, all at once, and return what that changes; with ``dry_run`` what it would.

        Raises:
            JupyterGpuError: as `Backend.apply_queues`; nothing is changed then.
        """
        place = await self._backend.describe()
        await self._backend.apply_queues(queues, dry_run=dry_run)
        return tuple(differences(current_queues(place), current_queues(place, queues)))


def current_queues(place: Place, queues: QueueSet | None = None) -> QueueSet:
    """Return how the queues of a place are set up: those of a set, or the one of a place where nothing is set."""
    found = place.queue_set if queues is None else queues
    return found if found.queues else found.model_copy(update={"queues": QueueSet.default(place.capacity).queues})


def differences(before: QueueSet, after: QueueSet) -> Iterator[Difference]:
    """Yield what becomes of each queue and cohort, in the order of the new set, then what is gone, then settings."""
    for kind, olds, news in (("queue", before.queues, after.queues), ("cohort", before.cohorts, after.cohorts)):
        old: Mapping[str, QueueSpec | CohortSpec] = {one.name: one for one in olds}
        new: Mapping[str, QueueSpec | CohortSpec] = {one.name: one for one in news}
        for name, one in new.items():
            if name not in old:
                yield Difference(kind=kind, name=name, change=Change.ADDED, details=tuple(_told(_set(one))))
            elif old[name] == one:
                yield Difference(kind=kind, name=name, change=Change.KEPT)
            else:
                details = tuple(_changed(_set(old[name]), _set(one)))
                yield Difference(kind=kind, name=name, change=Change.CHANGED, details=details)
        for name in old:
            if name not in new:
                yield Difference(kind=kind, name=name, change=Change.REMOVED)
    if before.starve_after_s != after.starve_after_s:
        details = (f"{before.starve_after_s:g} -> {after.starve_after_s:g}",)
        yield Difference(kind="setting", name="starve_after_s", change=Change.CHANGED, details=details)


def _set(one: QueueSpec | CohortSpec) -> dict[str, Any]:
    """Return what is set of a queue or cohort, flat: path -> value."""
    flat: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                step = key if key.isidentifier() else f"[{key!r}]"
                walk(f"{path}{'.' if path and step[0] != '[' else ''}{step}", part)
        elif path != "name":
            flat[path] = value

    content = one.model_dump(mode="json", exclude_defaults=True)
    for quota in content.get("quotas", {}).values():
        quota.setdefault("nominal", 0.0)  # which says something: it may have these, though none are its own
    walk("", content)
    return flat


def _told(values: Mapping[str, Any]) -> Iterator[str]:
    for path, value in values.items():
        yield f"{path}: {_shown(path, value)}"


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for path in dict.fromkeys((*old, *new)):
        if old.get(path) != new.get(path):
            yield f"{path}: {_shown(path, old.get(path))} -> {_shown(path, new.get(path))}"


def _shown(path: str, value: Any) -> str:
    if value is None:
        return "default"
    if path.startswith(f"quotas.{MEMORY}."):
        return format_bytes(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def lent(place: Place) -> dict[str, dict[str, float]]:
    """Return by queue and resource what it could not have now of its own share, for others of its cohort use it."""
    tree = Tree(current_queues(place))
    usage = Usage(tree)
    for queue in place.queues:
        for resource, used in queue.used.items():
            if queue.name in tree.queues and resource in tree.shares:
                usage.change(tree.shares[resource], tree.queues[queue.name], units(resource, used))
    found: dict[str, dict[str, float]] = {}
    for name, node in tree.queues.items():
        for resource, share in tree.shares.items():
            unused = share.subtree[node] - usage.used(share, node)
            gone = unused - max(0, usage.available(share, node))
            if unused > 0 and gone > 0:
                found.setdefault(name, {})[resource] = gone / 1000 if resource == CPU else float(gone)
    return found
