"""What is told of a Workload's past, and of what it used, from Jobs and pods."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from jupyter_gpu.backends.kubernetes.attempts import Attempt
from jupyter_gpu.backends.kubernetes.keeping import end_annotation
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.phases import status_of
from jupyter_gpu.backends.kubernetes.story import events_of, kept_usage, usage_of
from jupyter_gpu.schema import Phase, Start
from tests.unit.test_kubernetes_phases import CANCELLED, NOW, job, pod, running, terminated

QUEUED, STARTING, RUNNING = Phase.QUEUED, Phase.STARTING, Phase.RUNNING
BEGIN = datetime(2030, 1, 1, 12, tzinfo=UTC)
MEASURED = {"measured_device_s": 50.0, "idle_device_s": 20.0, "cpu_s": 7.5, "peak_memory_bytes": 1000}
DONE = json.dumps({"report": "end", "code": "end.completed", "message": "done", "exit_code": 0, "facts": {"usage": MEASURED}})


def attempt(*pods: dict[str, Any], trouble: Any = None, **changes: Any) -> Attempt:
    return Attempt(job(**changes), pods, trouble or {})


def told(one: Attempt) -> list[tuple[Phase, str | None]]:
    return [(event.phase, event.reason.code if event.reason else None) for event in events_of([one])]


def test_what_waits_tells_what_for() -> None:
    assert told(attempt()) == [(QUEUED, "queue.submitted")]
    assert told(attempt(pod(node=None))) == [(QUEUED, "queue.busy")]


def test_what_runs_tells_every_phase_so_far() -> None:
    assert told(attempt(running())) == [(QUEUED, "queue.submitted"), (STARTING, None), (RUNNING, None)]


def test_what_ended_tells_its_end_last() -> None:
    one = attempt(terminated(0, DONE))
    assert told(one)[-1] == (Phase.SUCCEEDED, "end.completed")
    assert events_of([one])[-1].time == status_of(one).ended


def test_what_was_waited_for_is_told_by_the_last_complaint() -> None:
    quota = "Error creating: exceeded quota: gpu, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, " + (
        "limited: requests.nvidia.com/gpu=4"
    )
    assert told(attempt(running(), trouble={"job-uid": {"FailedCreate": quota}}))[0] == (QUEUED, "queue.quota")
    busy = {"pod-0": {"FailedScheduling": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: none"}}
    first, *_ = events_of([attempt(running(), trouble=busy)])
    assert first.reason
    assert first.reason.message == "waits for room on a node: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def test_that_it_was_told_to_end_stands_where_it_was_then() -> None:
    later = {labels.CANCELLED_AT: "2030-01-01T12:00:30Z"}
    one = attempt(terminated(143), wish=CANCELLED, annotations=later)
    assert told(one)[-2:] == [(RUNNING, "end.stopping"), (Phase.CANCELLED, "end.cancelled")]
    stopping = events_of([one])[-2].reason
    assert stopping
    assert stopping.facts["because"] == "end.cancelled"
    waited = attempt(wish=CANCELLED, annotations=later, conditions=("Suspended",))
    assert told(waited) == [
        (QUEUED, "queue.submitted"),
        (QUEUED, "end.stopping"),
        (Phase.CANCELLED, "end.cancelled"),
    ]


def test_times_of_several_clocks_come_in_order() -> None:
    late = running()
    late["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": 0, "startedAt": NOW, "finishedAt": NOW}}}]
    late["status"] |= {"phase": "Succeeded"}
    late["status"]["conditions"][0]["lastTransitionTime"] = "2030-01-01T12:00:02Z"
    events = events_of([attempt(late)])
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert events[-1].phase is Phase.SUCCEEDED


def test_what_never_had_a_node_used_nothing() -> None:
    assert usage_of(attempt(pod(node=None), gpus=1), BEGIN) is None
    assert usage_of(attempt(gpus=1), BEGIN) is None


def test_what_runs_has_used_its_devices_up_to_now() -> None:
    used = usage_of(attempt(running(), gpus=2), BEGIN.replace(minute=2))
    assert used
    assert (used.resource, used.gpus, used.ended, used.phase) == ("nvidia.com/gpu", 2, None, RUNNING)
    assert used.device_seconds == 240


def test_what_ended_has_used_what_its_report_says() -> None:
    used = usage_of(attempt(terminated(0, DONE), gpus=1), BEGIN.replace(hour=15))
    assert used
    assert (used.device_seconds, used.measured_device_seconds, used.idle_device_seconds) == (60, 50, 20)
    assert (used.cpu_seconds, used.peak_memory_bytes, used.idle_share) == (7.5, 1000, 0.4)
    assert used.ended == BEGIN.replace(minute=1)


def test_what_a_report_says_of_use_is_no_fact_of_the_end() -> None:
    reason = status_of(attempt(terminated(0, DONE))).reason
    assert reason
    assert reason.facts == {"exit_code": 0}


def test_replicas_that_start_together_hold_their_devices_until_the_last_ends() -> None:
    pods = terminated(0, DONE, rank=0), terminated(0, DONE, rank=1)
    used = usage_of(attempt(*pods, gpus=1, replicas=2), BEGIN)
    assert used
    assert (used.gpus, used.device_seconds, used.cpu_seconds) == (2, 120, 15)


def test_replicas_that_start_as_they_fit_count_each_for_itself() -> None:
    pods = terminated(0, DONE, rank=0), running(rank=1)
    used = usage_of(attempt(*pods, gpus=1, replicas=2, start=Start.AS_THEY_FIT), BEGIN.replace(minute=3))
    assert used
    assert used.device_seconds == 60 + 180


def test_what_was_written_down_is_told_when_the_pods_are_gone() -> None:
    whole = attempt(terminated(0, DONE), gpus=1)
    kept = kept_usage(whole, status_of(whole))
    assert kept
    settled = {labels.USAGE: kept, labels.END: end_annotation(status_of(whole))}
    later = attempt(gpus=1, conditions=("Complete",), annotations=settled)
    assert usage_of(later, BEGIN) == usage_of(whole, BEGIN)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"facts": 3}', '{"facts": {"usage": {"cpu_s": "much"}}}'])
def test_a_report_that_tells_no_use_is_no_failure(text: str) -> None:
    used = usage_of(attempt(terminated(0, text), gpus=1), BEGIN)
    assert used
    assert used.cpu_seconds == 0
