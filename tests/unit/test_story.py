"""The story of a workload: its phases, with what its replicas reported of themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jupyter_gpu.schema import Event, LogLine, Phase, Reason, Resources, Stream, Workload, WorkloadStatus
from jupyter_gpu.verbs import samples
from jupyter_gpu.verbs.story import story
from tests.builders import a_workload

_START = datetime(2030, 1, 1, tzinfo=UTC)


def _at(seconds: float) -> datetime:
    return _START + timedelta(seconds=seconds)


def _event(seconds: float, phase: Phase, *, attempt: int = 1, code: str = "", message: str = "") -> Event:
    reason = Reason(code=code, message=message) if code else None
    return Event(time=_at(seconds), attempt=attempt, phase=phase, reason=reason)


def _report(seconds: float, report: str, *, replica: int = 0, attempt: int = 1, **fields: Any) -> LogLine:
    told = {"report": report, **fields}
    return LogLine(time=_at(seconds), replica=replica, attempt=attempt, stream=Stream.REPORT, report=told)


def _workload(replicas: int = 1) -> Workload:
    return Workload(
        spec=a_workload("w-1", gpus=1, replicas=replicas),
        status=WorkloadStatus(id="w-1", phase=Phase.RUNNING, created=_START),
    )


_PREEMPTED = (
    _event(0, Phase.QUEUED, code="queue.busy", message="waits for 1"),
    _event(60, Phase.STARTING),
    _event(61, Phase.RUNNING),
    _event(100, Phase.RUNNING, code="end.stopping", message="told to end"),
    _event(110, Phase.QUEUED, attempt=2, code="queue.busy", message="waits for 1"),
    _event(200, Phase.STARTING, attempt=2),
    _event(201, Phase.RUNNING, attempt=2),
    _event(300, Phase.SUCCEEDED, attempt=2, code="end.completed", message="it ended with exit code 0"),
)


def test_every_phase_of_every_attempt_is_told_with_how_long_it_lasted() -> None:
    told = story(_workload(), _PREEMPTED, [])
    assert [(one.attempt, one.what, one.lasted_s) for one in told] == [
        (1, "queued", 60),
        (1, "starting", 1),
        (1, "running", 39),
        (1, "running", 10),
        (2, "queued", 90),
        (2, "starting", 1),
        (2, "running", 99),
        (2, "succeeded", None),
    ]
    assert told[3].code == "end.stopping" and told[-1].message == "it ended with exit code 0"


def test_what_runs_still_has_no_length() -> None:
    assert story(_workload(), _PREEMPTED[:3], [])[-1].lasted_s is None


def test_a_running_phase_tells_where_and_holding_what() -> None:
    told = story(_workload(), _PREEMPTED, [_report(201.5, "started", attempt=2, node="gpu1", devices=["GPU-0"])])
    assert [one.message for one in told if one.what == "running"] == ["", "told to end", "on gpu1, holding GPU-0"]
    assert len(told) == len(_PREEMPTED)


def test_a_kernels_death_stands_between_the_phases() -> None:
    told = story(_workload(), _PREEMPTED[:4], [_report(80, "kernel", message="it ended with exit code 3")])
    assert [one.what for one in told] == ["queued", "starting", "running", "died", "running"]
    assert told[3].message == "the kernel died: it ended with exit code 3"


def test_of_several_replicas_each_start_and_end_is_told() -> None:
    reports = [
        _report(61, "started", replica=0, node="a"),
        _report(62, "started", replica=1, node="b"),
        _report(70, "end", replica=1, message="it ended with exit code 0"),
    ]
    told = story(_workload(replicas=2), _PREEMPTED[:3], reports)
    assert [one.message for one in told[3:]] == [
        "replica 0: started on a",
        "replica 1: started on b",
        "replica 1: it ended with exit code 0",
    ]


def test_a_sample_is_told_with_its_limit() -> None:
    gpus = [{"id": "GPU-0", "utilization": 0.37, "memory_bytes": int(9.1 * 2**30)}]
    line = _report(70, "sample", cpu=0.81, memory_bytes=int(2.1 * 2**30), gpus=gpus)
    assert samples.as_text(line, Resources(gpus=1)) == "GPU 37 %, 9.1 GiB; CPU 0.8; memory 2.1 GiB of 4 GiB"


@pytest.mark.parametrize("gpus", [None, [], [{"id": "GPU-0", "utilization": None, "memory_bytes": None}], ["?"]])
def test_what_was_not_measured_is_said_so(gpus: Any) -> None:
    line = _report(70, "sample", cpu=None, memory_bytes=None, gpus=gpus)
    assert samples.as_text(line, Resources()) in ("", "GPU not measured")
    assert samples.as_data(line)["cpus"] is None


def test_the_newest_sample_of_each_replica_counts() -> None:
    lines = [_report(1, "sample", cpu=1), _report(2, "sample", cpu=2), _report(1, "sample", replica=1, cpu=3), _report(3, "end")]
    assert {rank: line.time for rank, line in samples.newest(lines).items()} == {0: _at(2), 1: _at(1)}
