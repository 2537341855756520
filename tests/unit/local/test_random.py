"""Short runs of what `make soak` does at length: many clients at once, and random deaths of everything that can die."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack

from tests.soak.crowd import crowd
from tests.soak.deaths import deaths
from tests.soak.outcome import Outcome, read_independently
from tests.soak.place import an_empty_place


def test_no_device_is_ever_given_twice_and_all_that_many_submit_ends() -> None:
    assert not crowd(seed=1, clients=3, workloads=30).failures


def test_whoever_is_killed_nothing_is_held_by_the_dead_and_all_has_an_end_and_a_reason() -> None:
    assert not deaths(seed=1, kills=20, clients=2).failures


def test_the_independent_reader_sees_a_device_held_twice_and_a_quota_that_is_not_kept() -> None:
    outcome = Outcome("what is wrong on purpose")
    with an_empty_place() as place, ExitStack() as stack:
        for id, devices in (("speech-1", "a,b"), ("speech-2", "c"), ("night-1", "a"), ("night-2", "d")):
            marks = {"JUPYTER_GPU_STATE": str(place.state), "JUPYTER_GPU_WORKLOAD": id, "JUPYTER_GPU_ATTEMPT": "1"}
            holder = subprocess.Popen(["sleep", "60"], env={**place.variables, **marks, "JUPYTER_GPU_DEVICES": devices})
            stack.callback(holder.wait)
            stack.callback(holder.kill)
        with read_independently(place, outcome):
            pass  # it looks at least once
    assert sorted(outcome.failures) == [
        "the reader saw: a is held by night-1, attempt 1 and by speech-1, attempt 1",
        "the reader saw: speech holds 3 devices, and may hold 2",
        "the reader saw: vision lends more than 1: all others hold 5 devices",
    ]
