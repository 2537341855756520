"""One attempt at a Workload as the API server shows it: a Job, its pods, and what went wrong on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.schema import Reason, WorkloadSpec

Thing = Mapping[str, Any]
"""An object as the API server gives it."""


@dataclass(frozen=True)
class Attempt:
    """A Job with its pods. `phases` says how it stands."""

    job: Thing
    pods: tuple[Thing, ...] = ()
    trouble: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Warnings by the uid of the object they are about: event reason -> message."""

    @property
    def name(self) -> str:
        """The Job's name, and the Secret's."""
        return str(self.job["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The Job's uid."""
        return str(self.job["metadata"]["uid"])

    @property
    def version(self) -> str:
        """The Job's resourceVersion, for changes that must not overwrite another's."""
        return str(self.job["metadata"]["resourceVersion"])

    @property
    def annotations(self) -> Mapping[str, str]:
        """The Job's annotations."""
        return self.job["metadata"].get("annotations") or {}

    @property
    def number(self) -> int:
        """Which try it is, counted from 1."""
        return int(self.job["metadata"]["labels"][labels.ATTEMPT])

    @property
    def id(self) -> str:
        """The Workload's id, as its client chose it."""
        return self.annotations.get(labels.ID, "")

    @property
    def owner(self) -> str:
        """The account it belongs to."""
        return self.annotations.get(labels.OWNER, "")

    @property
    def content(self) -> str:
        """Hash of what was asked for."""
        return self.annotations.get(labels.CONTENT, "")

    @property
    def holder(self) -> str | None:
        """Name of the Lease of the client that holds it."""
        return self.annotations.get(labels.HOLDER) or None

    @property
    def is_settled(self) -> bool:
        """Whether its end has been written down and its Secret is gone."""
        return labels.END in self.annotations

    @property
    def created(self) -> datetime:
        """When it was asked for."""
        return time_of(self.job["metadata"]["creationTimestamp"])

    @cached_property
    def spec(self) -> WorkloadSpec:
        """What was asked for."""
        return WorkloadSpec.model_validate_json(self.annotations[labels.SPEC])

    @cached_property
    def wish(self) -> Reason | None:
        """Why it must end, once somebody wants that."""
        text = self.annotations.get(labels.CANCEL)
        return Reason.model_validate_json(text) if text else None

    @cached_property
    def settled_end(self) -> tuple[Reason | None, datetime] | None:
        """The Reason and time of its end, if they were written down."""
        text = self.annotations.get(labels.END)
        if not text:
            return None
        end = json.loads(text)
        return Reason.model_validate(end["reason"]) if end["reason"] else None, time_of(end["time"])

    @property
    def never_ran(self) -> bool:
        """Whether it was ended before a program of it started, so that there never was a log."""
        return self.wish is not None and labels.STARTED not in self.annotations

    @property
    def is_suspended(self) -> bool:
        """Whether the Job controller has seen that no pod of it may run any more."""
        return bool(self.job["spec"].get("suspend")) and condition(self.job, "Suspended") is not None

    @property
    def finished(self) -> Thing | None:
        """The Job's own word that it is over: its condition Complete or Failed."""
        return condition(self.job, "Complete") or condition(self.job, "Failed")

    @property
    def is_readable(self) -> bool:
        """Whether this code understands it; an object of a newer version may hold what it does not."""
        try:
            _ = self.spec, self.wish, self.settled_end
            return bool(self.id)
        except (KeyError, ValidationError, ValueError):
            return False


def attempts_of(jobs: Iterable[Thing], pods: Iterable[Thing]) -> list[Attempt]:
    """Return the attempts that these Jobs are, each with its pods; the newest of each Workload last."""
    theirs: dict[tuple[str, int], list[Thing]] = {}
    for pod in pods:
        if key := labels.workload_of(pod):
            theirs.setdefault(key, []).append(pod)
    keyed = sorted(((key, job) for job in jobs if (key := labels.workload_of(job))), key=lambda pair: pair[0])
    return [Attempt(job, tuple(theirs.get(key, ()))) for key, job in keyed]


def rank_of(pod: Thing) -> int:
    """Return which replica a pod is."""
    return int((pod["metadata"].get("annotations") or {}).get(labels.RANK, "0"))


def has_started(pod: Thing) -> bool:
    """Whether a pod's program runs or has run."""
    states = [one.get("state") or {} for one in (pod.get("status") or {}).get("containerStatuses") or ()]
    return any({"running", "terminated"} & set(state) for state in states)


def condition(thing: Thing, kind: str, status: str = "True") -> Thing | None:
    """Return an object's condition of a type, if it has that status."""
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind and c["status"] == status), None)


def time_of(text: str) -> datetime:
    """Return a time that the API server or a kubelet wrote (RFC 3339, up to nanoseconds)."""
    return datetime.fromisoformat(text)
