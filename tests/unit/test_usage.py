"""Who used what: attempts folded by queue, owner and workload."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jupyter_gpu.schema import Kind, Phase, Usage
from jupyter_gpu.services.usage import By, fold

_NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
_HOUR = timedelta(hours=1)


def _usage(id: str = "w-1", **changes: Any) -> Usage:
    """Return an hour of two devices that ended at noon."""
    fields: dict[str, Any] = {
        "id": id,
        "attempt": 1,
        "name": id,
        "owner": "ana",
        "queue": "vision",
        "kind": Kind.BATCH,
        "resource": "nvidia.com/gpu",
        "gpus": 2,
        "started": _NOON - _HOUR,
        "ended": _NOON,
        "phase": Phase.SUCCEEDED,
        "device_seconds": 7200,
        "cpu_seconds": 3600,
        "peak_memory_bytes": 10,
    }
    return Usage(**fields | changes)


def test_nothing_used_is_no_row() -> None:
    assert fold([], By.QUEUE, since=None, now=_NOON) == ()


def test_sums_are_by_queue_owner_or_workload_and_the_largest_comes_first() -> None:
    records = [
        _usage("w-1", queue="speech"),
        _usage("w-2"),
        _usage("w-2", attempt=2, peak_memory_bytes=20),
        _usage("w-3", owner="bo", device_seconds=1),
    ]
    by_queue = fold(records, By.QUEUE, since=None, now=_NOON)
    assert [(one.name, one.workloads, one.device_seconds) for one in by_queue] == [("vision", 2, 14401), ("speech", 1, 7200)]
    assert by_queue[0].peak_memory_bytes == 20 and by_queue[0].cpu_seconds == 3 * 3600
    assert [(one.name, one.workloads) for one in fold(records, By.OWNER, since=None, now=_NOON)] == [("ana", 2), ("bo", 1)]
    assert [one.id for one in fold(records, By.WORKLOAD, since=None, now=_NOON)] == ["w-2", "w-1", "w-3"]


def test_devices_of_another_kind_are_summed_for_themselves() -> None:
    records = [_usage("w-1"), _usage("w-2", resource="nvidia.com/mig-1g.10gb"), _usage("w-3", resource="", device_seconds=0)]
    rows = fold(records, By.QUEUE, since=None, now=_NOON)
    assert {one.resource: one.workloads for one in rows} == {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 1, "": 1}


def test_the_idle_share_is_of_measured_time_only() -> None:
    measured = _usage("w-1", measured_device_seconds=3600, idle_device_seconds=900)
    (row,) = fold([measured, _usage("w-2")], By.QUEUE, since=None, now=_NOON)
    assert row.idle_share == pytest.approx(0.25)
    (row,) = fold([_usage()], By.QUEUE, since=None, now=_NOON)
    assert row.idle_share is None


@pytest.mark.parametrize(
    ("since", "hours"),
    [
        (_NOON - 2 * _HOUR, 2.0),
        (_NOON - _HOUR, 2.0),
        (_NOON - _HOUR / 2, 1.0),
        (_NOON, 0.0),
        (_NOON + _HOUR, 0.0),
    ],
)
def test_of_what_began_before_the_period_the_part_within_counts(since: datetime, hours: float) -> None:
    (row,) = fold([_usage()], By.QUEUE, since=since, now=_NOON + 2 * _HOUR)
    assert row.device_seconds == pytest.approx(hours * 3600)


def test_what_runs_counts_up_to_now() -> None:
    (row,) = fold([_usage(ended=None, phase=Phase.RUNNING)], By.QUEUE, since=_NOON - _HOUR / 2, now=_NOON)
    assert row.device_seconds == pytest.approx(3600)
