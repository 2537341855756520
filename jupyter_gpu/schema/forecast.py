"""A Forecast: the answer to "would it start now?", before anything is submitted."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from jupyter_gpu.schema.base import Schema
from jupyter_gpu.schema.workload import Reason


class Basis(StrEnum):
    """How sure a Forecast is."""

    EXACT = "exact"
    ESTIMATE = "estimate"


class InTheWay(Schema):
    """One Workload that holds, or waits for, what is asked for."""

    id: str
    name: str
    owner: str = ""
    queue: str
    priority: int = 0
    holds: dict[str, int] = Field(default_factory=dict, description="Of the resources that are short; empty for one that waits.")
    ends_within_s: float | None = Field(None, description="How long it stays at most, by its limits; None if nothing limits it.")


class Forecast(Schema):
    """The answer to "would it start now?"."""

    starts_now: bool
    basis: Basis = Field(description="exact: it follows from what the place knows; estimate: another scheduler decides.")
    message: str = Field(description="The answer in a sentence or two.")
    reason: Reason | None = Field(
        None,
        description="Why it would wait, as its QUEUED phase would say; None if it starts now, never does, or that can't be told.",
    )
    never: bool = Field(False, description="Whether waiting can't help: it is more than may ever be had.")
    position: int | None = Field(
        None, ge=1, description="Its place in its queue, 1 is next; None if it starts now or that is unknown."
    )
    short: dict[str, int] = Field(default_factory=dict, description="By resource, how much is missing (cpu in thousandths).")
    ahead: tuple[InTheWay, ...] = Field((), description="Who waits in front of it, next first.")
    holders: tuple[InTheWay, ...] = Field((), description="Who holds what is short, the one that must end first in front.")
    preempts: tuple[InTheWay, ...] = Field((), description="Who would be told to yield to it.")
    within_s: float | None = Field(
        None, description="When it starts at the latest, by the limits of all before it; None if they set none."
    )
    smaller_gpus: int | None = Field(
        None,
        description="The most devices per replica with which it would start now, nobody yielding to it; None if no size would.",
    )
