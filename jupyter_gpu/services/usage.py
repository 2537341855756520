"""Who used what: what a place knows of each attempt, folded by queue, owner or workload."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from pydantic import Field

from jupyter_gpu.schema import ByteSize, Schema, Usage


class By(StrEnum):
    """What usage is summed up for."""

    QUEUE = "queue"
    OWNER = "owner"
    WORKLOAD = "workload"


class UsageSum(Schema):
    """What a queue, an owner or a workload used of one kind of device."""

    name: str = Field(description="Of the queue, the owner or the workload.")
    id: str | None = Field(None, description="Of the workload, where it is one.")
    resource: str = Field(description="Resource name of the devices; empty for work without one.")
    workloads: int
    device_seconds: float
    measured_device_seconds: float = Field(description="The part of them in which the devices' use was measured.")
    idle_device_seconds: float = Field(description="The part of the measured ones in which a device did nothing.")
    idle_share: float | None = Field(description="Idle of measured; None where nothing was measured.")
    cpu_seconds: float
    peak_memory_bytes: ByteSize = Field(description="The most that one attempt had at once; 0 where it was not measured.")


def fold(records: Iterable[Usage], by: By, *, since: datetime | None, now: datetime) -> tuple[UsageSum, ...]:
    """Return the sums, the largest first.

    Of an attempt that began before ``since`` the part counts that came after, as if it had used everything evenly.

    Args:
        records: one per attempt.
        by: what to sum up for; a row is for one kind of device besides.
        since: where the period begins; all that is known when absent.
        now: where it ends.
    """
    groups: dict[tuple[str, str], list[Usage]] = {}
    for record in records:
        key = {By.QUEUE: record.queue, By.OWNER: record.owner, By.WORKLOAD: record.id}[by]
        groups.setdefault((key, record.resource), []).append(record)
    sums = [_sum(group, by, since, now) for group in groups.values()]
    return tuple(sorted(sums, key=lambda one: (-one.device_seconds, -one.cpu_seconds, one.name)))


def _sum(group: list[Usage], by: By, since: datetime | None, now: datetime) -> UsageSum:
    newest = group[-1]
    parts = [_part(record, since, now) for record in group]
    measured = sum(record.measured_device_seconds * part for record, part in zip(group, parts, strict=True))
    idle = sum(record.idle_device_seconds * part for record, part in zip(group, parts, strict=True))
    return UsageSum(
        name={By.QUEUE: newest.queue, By.OWNER: newest.owner, By.WORKLOAD: newest.name}[by],
        id=newest.id if by is By.WORKLOAD else None,
        resource=newest.resource,
        workloads=len({record.id for record in group}),
        device_seconds=sum(record.device_seconds * part for record, part in zip(group, parts, strict=True)),
        measured_device_seconds=measured,
        idle_device_seconds=idle,
        idle_share=idle / measured if measured else None,
        cpu_seconds=sum(record.cpu_seconds * part for record, part in zip(group, parts, strict=True)),
        peak_memory_bytes=max(record.peak_memory_bytes for record in group),
    )


def _part(record: Usage, since: datetime | None, now: datetime) -> float:
    """Return the fraction of an attempt's time that came after ``since``."""
    if since is None or record.started >= since:
        return 1.0
    end = record.ended or now
    whole = (end - record.started).total_seconds()
    return max(0.0, (end - since).total_seconds() / whole) if whole > 0 else 0.0
