"""Admission: who starts, who waits, and why."""

from __future__ import annotations

import random

import pytest

from jupyter_gpu.queueing import Admission, Claim, admit, totals
from jupyter_gpu.schema import Kind, Resources, WorkloadSpec

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def a_claim(id: str, gpus: int, *, sequence: int = 0, priority: int = 0, resource: str = GPU, name: str = "") -> Claim:
    return Claim(id, sequence, resource, gpus, priority, name=name)


def test_with_nobody_waiting_nothing_is_decided() -> None:
    assert admit([], {GPU: 2}, {GPU: 2}) == Admission()


def test_those_who_fit_start_in_the_order_of_their_arrival() -> None:
    waiting = [a_claim("late", 1, sequence=2), a_claim("early", 1, sequence=1)]
    assert admit(waiting, {GPU: 2}, {GPU: 2}).start == ("early", "late")


def test_who_does_not_fit_waits_with_a_position_and_a_reason() -> None:
    admission = admit([a_claim("w-1", 2)], {GPU: 1}, {GPU: 4})
    assert admission.start == ()
    assert admission.positions == {"w-1": 1}
    reason = admission.reasons["w-1"]
    assert reason.code == "queue.busy"
    assert reason.message == "waits for 2 nvidia.com/gpu: 1 of 4 free"
    assert reason.facts == {"resource": GPU, "asked": 2, "free": 1, "capacity": 4, "ahead": 0}


def test_who_waits_behind_others_is_told_who_is_next() -> None:
    waiting = [a_claim("w-1", 2, sequence=1, name="train"), a_claim("w-2", 1, sequence=2), a_claim("w-3", 1, sequence=3)]
    admission = admit(waiting, {GPU: 1}, {GPU: 2})
    assert admission.positions == {"w-1": 1, "w-2": 2, "w-3": 3}
    assert admission.reasons["w-3"].message == "waits for 1 nvidia.com/gpu: 1 of 2 free, 2 ahead (next is train with 2)"
    assert admission.reasons["w-3"].facts["ahead"] == 2


def test_who_is_next_is_named_by_id_where_it_has_no_name() -> None:
    admission = admit([a_claim("w-1", 1, sequence=1), a_claim("w-2", 1, sequence=2)], {}, {GPU: 1})
    assert "next is w-1 with 1" in admission.reasons["w-2"].message


def test_the_small_one_behind_does_not_overtake_the_large_one() -> None:
    admission = admit([a_claim("large", 2, sequence=1), a_claim("small", 1, sequence=2)], {GPU: 1}, {GPU: 2})
    assert admission.start == ()


def test_the_small_one_ahead_starts() -> None:
    admission = admit([a_claim("small", 1, sequence=1), a_claim("large", 2, sequence=2)], {GPU: 2}, {GPU: 2})
    assert admission.start == ("small",)
    assert admission.positions == {"large": 1}


def test_higher_priority_comes_first_whenever_it_arrived() -> None:
    waiting = [
        a_claim("low", 1, sequence=1, priority=-1),
        a_claim("plain", 1, sequence=2),
        a_claim("high", 1, sequence=3, priority=9),
    ]
    admission = admit(waiting, {GPU: 1}, {GPU: 1})
    assert admission.start == ("high",)
    assert admission.positions == {"plain": 1, "low": 2}


def test_kinds_of_devices_do_not_hold_each_other_back() -> None:
    waiting = [a_claim("gpu", 2, sequence=1), a_claim("mig", 1, sequence=2, resource=MIG)]
    admission = admit(waiting, {GPU: 1, MIG: 1}, {GPU: 2, MIG: 1})
    assert admission.start == ("mig",)
    assert admission.positions == {"gpu": 1}


def test_who_wants_no_device_never_waits() -> None:
    admission = admit([a_claim("large", 2, sequence=1), a_claim("none", 0, sequence=2)], {GPU: 0}, {GPU: 2})
    assert admission.start == ("none",)


def test_a_kind_that_is_not_there_has_nothing_free() -> None:
    admission = admit([a_claim("w-1", 1, resource="amd.com/gpu")], {GPU: 2}, {GPU: 2})
    assert admission.reasons["w-1"].message == "waits for 1 amd.com/gpu: 0 of 0 free"


def test_what_is_known_is_left_as_it_was() -> None:
    free = {GPU: 2}
    admit([a_claim("w-1", 1)], free, {GPU: 2})
    assert free == {GPU: 2}


def test_a_claim_counts_the_devices_of_all_replicas() -> None:
    spec = WorkloadSpec(
        id="w-1",
        name="train",
        kind=Kind.TRAINING,
        queue="vision",
        priority=3,
        replicas=4,
        resources=Resources(gpus=2),
        command=("x",),
    )
    assert Claim.of(spec, 7) == Claim("w-1", 7, GPU, 8, 3, "vision", "train")


def test_totals_are_by_kind_of_device() -> None:
    assert totals([a_claim("w-1", 2), a_claim("w-2", 1), a_claim("w-3", 3, resource=MIG)]) == {GPU: 3, MIG: 3}
    assert totals([]) == {}


@pytest.mark.parametrize("seed", range(200))
def test_nobody_is_overtaken_and_never_is_more_given_than_is_free(seed: int) -> None:
    chance = random.Random(seed)
    capacity = {GPU: chance.randint(0, 8), MIG: chance.randint(0, 8)}
    free = {resource: chance.randint(0, count) for resource, count in capacity.items()}
    waiting = [
        a_claim(f"w-{n}", chance.randint(0, 4), sequence=n, priority=chance.randint(-1, 1), resource=chance.choice((GPU, MIG)))
        for n in range(chance.randint(0, 30))
    ]
    order = {claim.id: (-claim.priority, claim.sequence) for claim in waiting}
    chance.shuffle(waiting)
    admission = admit(waiting, free, capacity)

    claims = {claim.id: claim for claim in waiting}
    assert sorted((*admission.start, *admission.positions)) == sorted(claims)
    assert admission.positions.keys() == admission.reasons.keys()
    given = totals(claims[id] for id in admission.start)
    for resource in capacity:
        started = [id for id in admission.start if claims[id].resource == resource and claims[id].gpus]
        line = [id for id in admission.positions if claims[id].resource == resource]
        assert given.get(resource, 0) <= free[resource]
        assert [admission.positions[id] for id in sorted(line, key=order.__getitem__)] == list(range(1, len(line) + 1))
        if line:
            first = min(line, key=order.__getitem__)
            assert all(order[id] < order[first] for id in started)  # nobody behind the first who waits has started
            assert claims[first].gpus > free[resource] - given.get(resource, 0)  # and that one really does not fit
