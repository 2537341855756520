"""Queues: a department's share of each resource, in Kueue's words.

Source: Kueue, ClusterQueue and Cohort (https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/, .../cohort/).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from jupyter_gpu.schema.base import Schema, Word, parse_bytes

CPU, MEMORY = "cpu", "memory"
DEFAULT_QUEUE = "default"
_DEEPEST = 32
"""Cohorts within cohorts: more than any institution has, and less than what would be slow."""


def _quantity(value: Any) -> Any:
    """Read what Kubernetes writes, too: ``512Gi``, and ``500m`` for half a core."""
    if isinstance(value, bool):
        raise ValueError("a number is needed, not true or false")
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,18}m\s*", value):
        return int(value.strip()[:-1]) / 1000
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is no amount; write it like 4, 0.5, 500m or 512GiB") from error


def _not_negative(value: float) -> float:
    if value < 0:
        raise ValueError("a quota can't be negative")
    return value


Amount = Annotated[float, BeforeValidator(_quantity), AfterValidator(_not_negative)]


class Quota(Schema):
    """How much of one resource a queue, or a cohort beside its members, may hold: devices, cores, or bytes."""

    nominal: Amount = Field(0.0, description="What is its own; devices, cores of cpu, bytes of memory ('512GiB').")
    borrowing_limit: Amount | None = Field(None, description="The most it may borrow from its cohort; None is no limit.")
    lending_limit: Amount | None = Field(None, description="The most of its own that it lends to its cohort; None is all.")

    @model_validator(mode="after")
    def _lends_what_it_has(self) -> Quota:
        if self.lending_limit is not None and self.lending_limit > self.nominal:
            raise ValueError(f"lending_limit {self.lending_limit:g} is more than nominal {self.nominal:g}")
        return self


class WithinQueue(StrEnum):
    """Whom a Workload may preempt in its own queue."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"
    LOWER_OR_NEWER_EQUAL_PRIORITY = "lower_or_newer_equal_priority"


class WithinCohort(StrEnum):
    """Whom a Workload that stays within its queue's nominal quota may preempt in other queues, which borrow."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"
    ANY = "any"


class Borrowing(StrEnum):
    """Whom a Workload may preempt in other queues while its own queue borrows."""

    NEVER = "never"
    LOWER_PRIORITY = "lower_priority"


class Preemption(Schema):
    """Who must yield to the Workloads of a queue; nobody, unless it says so.

    Source: Kueue, ClusterQueue.spec.preemption; the same defaults.
    """

    within_queue: WithinQueue = WithinQueue.NEVER
    reclaim_within_cohort: WithinCohort = WithinCohort.NEVER
    borrow_within_cohort: Borrowing = Borrowing.NEVER
    max_priority_threshold: int | None = Field(
        None, description="With borrow_within_cohort: only those of at most this priority must yield."
    )

    @model_validator(mode="after")
    def _borrows_only_where_it_reclaims(self) -> Preemption:
        if self.borrow_within_cohort is not Borrowing.NEVER and self.reclaim_within_cohort is WithinCohort.NEVER:
            raise ValueError("borrow_within_cohort needs reclaim_within_cohort: set it to lower_priority or any")
        if self.max_priority_threshold is not None and self.borrow_within_cohort is Borrowing.NEVER:
            raise ValueError("max_priority_threshold says nothing without borrow_within_cohort")
        return self


class CohortSpec(Schema):
    """Queues that lend to each other; cohorts may be members of a larger one."""

    name: Word = Field(min_length=1, max_length=253)
    parent: Word | None = Field(None, min_length=1, max_length=253, description="The cohort that it is a member of.")
    quotas: dict[str, Quota] = Field(default_factory=dict, description="What all members share beside their own, by resource.")


class QueueSpec(Schema):
    """A department's share."""

    name: Word = Field(min_length=1, max_length=253)
    cohort: Word | None = Field(None, min_length=1, max_length=253, description="Whom it lends to and borrows from.")
    quotas: dict[str, Quota] = Field(
        default_factory=dict, description="By resource: nvidia.com/gpu..., cpu, memory. Devices that are not named can't be had."
    )
    preemption: Preemption = Field(default_factory=Preemption)


class QueueSet(Schema):
    """All queues of a place: what ``jupyter gpu queues apply`` reads."""

    queues: tuple[QueueSpec, ...] = Field((), description="None at all: one queue 'default' with everything there is.")
    cohorts: tuple[CohortSpec, ...] = Field((), description="Only those with a parent or a quota of their own need be named.")
    starve_after_s: float = Field(
        600.0, ge=0, description="How long smaller work may overtake the first in line; then what becomes free is kept for it."
    )

    @model_validator(mode="before")
    @classmethod
    def _name_by_key(cls, value: Any) -> Any:
        """Read ``{queues: {vision: {...}}}`` like ``{queues: [{name: vision, ...}]}``."""
        if not isinstance(value, Mapping):
            return value
        for part in ("queues", "cohorts"):
            if part in value and not isinstance(value[part], Mapping | list | tuple):
                raise ValueError(f"{part} must be a mapping of names to what is set of each (`{part}: {{}}` is none)")
        named = {
            part: [_named(name, one) for name, one in value[part].items()]
            for part in ("queues", "cohorts")
            if isinstance(value.get(part), Mapping)
        }
        return {**value, **named}

    @model_validator(mode="after")
    def _holds_together(self) -> QueueSet:
        for what, names in (("queues", [one.name for one in self.queues]), ("cohorts", [one.name for one in self.cohorts])):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{what}: the name {twice[0]!r} is there twice; rename one of the two")
        for queue in self.queues:
            for resource, quota in queue.quotas.items():
                if queue.cohort is None and (quota.borrowing_limit is not None or quota.lending_limit is not None):
                    raise ValueError(
                        f"queue {queue.name!r}, {resource}: borrowing_limit and lending_limit say nothing without a cohort"
                    )
        for what, those in (("queue", self.queues), ("cohort", self.cohorts)):
            for one in those:
                _refuse_parts_of_devices(f"{what} {one.name!r}", one.quotas)
        self._refuse_cycle()
        return self

    def _refuse_cycle(self) -> None:
        parents = {one.name: one.parent for one in self.cohorts}
        for start in parents:
            path: list[str] = []
            here: str | None = start
            while here is not None:
                if here in path:
                    cycle = " > ".join([*path[path.index(here) :], here])
                    raise ValueError(f"the cohorts {cycle} form a cycle; take the parent from one of them")
                path.append(here)
                if len(path) > _DEEPEST:
                    raise ValueError(f"cohort {start!r} has more than {_DEEPEST - 1} others above it; put it nearer to the top")
                here = parents.get(here)

    def queue(self, name: str) -> QueueSpec | None:
        """Return a queue by its name; None if there is none."""
        return next((one for one in self.queues if one.name == name), None)

    @classmethod
    def default(cls, capacity: Mapping[str, int]) -> QueueSet:
        """Return what a place has where nobody set anything: one queue with all devices."""
        quotas = {resource: Quota(nominal=count) for resource, count in capacity.items()}
        return cls(queues=(QueueSpec(name=DEFAULT_QUEUE, quotas=quotas),))


def _named(name: Any, one: Any) -> Any:
    if one is None:
        return {"name": name}
    if not isinstance(one, Mapping):
        return one
    if one.get("name", name) != name:
        raise ValueError(f"{name!r} has another name within: {one['name']!r}; write it once")
    return {"name": name, **one}


def _refuse_parts_of_devices(whose: str, quotas: Mapping[str, Quota]) -> None:
    for resource, quota in quotas.items():
        for name, amount in quota:
            if resource not in (CPU, MEMORY) and amount is not None and amount != int(amount):
                raise ValueError(f"{whose}, {resource}: {name} must be a whole number of devices, and is {amount:g}")


def unknown_resources(queues: QueueSet, known: Iterable[str]) -> list[tuple[str, str]]:
    """Return (queue or cohort, resource) for each quota of something that a place does not have."""
    shares = [(one.name, one.quotas) for one in queues.queues] + [(one.name, one.quotas) for one in queues.cohorts]
    has = {CPU, MEMORY, *known}
    return [(name, resource) for name, quotas in shares for resource in quotas if resource not in has]
