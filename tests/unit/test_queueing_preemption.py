"""Who must yield to whom; the rules that Kueue has are also in `tests/stories.py`, beside its own decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpu.queueing import decide
from tests.unit.queueing_places import LOWER, TAKES_BACK, a_claim, a_holding, a_queue, a_state, code, gpus, queues, yielding

ONE = queues(a_queue("vision", 4, **LOWER))


def test_one_that_must_yield_is_told_to_whom_and_why() -> None:
    by = a_claim("w5", 4, "vision", priority=1, name="train-7", owner="ana")
    decision = decide(a_state([by], [a_holding("h1", 4, "vision")], of=ONE))
    [told] = decision.yielding
    assert told.reason.message == "it had to make room for ana/train-7 (priority 1) of the same queue"
    assert told.reason.facts == {
        "by": "w5", "by_name": "train-7", "by_owner": "ana", "by_queue": "vision", "by_priority": 1, "rule": "in_queue",
    }  # fmt: skip
    assert decision.starts == {}
    assert decision.reasons["w5"].message == "waits for 4 nvidia.com/gpu that h1 is giving back"
    assert code(decision, "w5") == "queue.preempting"


def test_what_may_not_be_preempted_is_not() -> None:
    holder = a_holding("h1", 4, "vision", preemptible=False)
    assert not decide(a_state([a_claim("w5", 4, "vision", priority=1)], [holder], of=ONE)).yielding


def test_nobody_more_is_told_while_one_is_leaving() -> None:
    holders = [a_holding("h1", 2, "vision", leaving=True), a_holding("h2", 2, "vision")]
    decision = decide(a_state([a_claim("w5", 2, "vision", priority=1, called=True)], holders, of=ONE))
    assert not decision.yielding
    assert code(decision, "w5") == "queue.preempting"


def test_what_is_free_is_kept_while_one_is_leaving() -> None:
    claims = [a_claim("w5", 4, "vision", priority=1), a_claim("w6", 1, "vision")]
    decision = decide(a_state(claims, [a_holding("h1", 2, "vision")], of=ONE))
    assert yielding(decision) == {"h1": "in_queue"}
    assert decision.starts == {}
    assert code(decision, "w6") == "queue.kept"


def test_only_those_yield_who_hold_the_right_model() -> None:
    of = queues(a_queue("vision", 8, **LOWER))
    holders = [a_holding("h1", 4, "vision", model="H100", since_s=9), a_holding("h2", 4, "vision", model="A100")]
    claim = a_claim("w5", 4, "vision", priority=1, product="A100")
    decision = decide(a_state([claim], holders, [gpus(4, 0, "H100"), gpus(4, 0, "A100")], of))
    assert yielding(decision) == {"h2": "in_queue"}


def test_of_what_starts_as_it_fits_single_replicas_yield() -> None:
    sweep = [a_holding("h1", 1, "vision", rank=rank, since_s=rank) for rank in range(4)]
    decision = decide(a_state([a_claim("w5", 2, "vision", priority=1)], sweep, of=ONE))
    assert {one.holding.rank for one in decision.yielding} == {2, 3}


def test_what_others_give_back_goes_to_the_one_that_called_and_not_to_who_waits_in_front_of_it() -> None:
    of = queues(a_queue("vision", 2, "lab", **LOWER, **TAKES_BACK), a_queue("speech", 2, "lab"))
    claims = [a_claim("w5", 3, "vision", priority=1), a_claim("w6", 2, "vision", priority=1)]  # w5 would borrow: it may not call
    decision = decide(a_state(claims, [a_holding("h1", 4, "vision")], of=of))
    assert [(one.holding.id, one.by.id) for one in decision.yielding] == [("h1", "w6")]


def test_nobody_yields_where_another_queue_in_front_would_get_it() -> None:
    """The one of speech came first and may not call; so to call would not help the one of text."""
    of = queues(a_queue("vision", 0, "lab"), a_queue("speech", 2, "lab"), a_queue("text", 2, "lab", **TAKES_BACK))
    claims = [a_claim("w5", 4, "text"), a_claim("w4", 2, "speech")]
    holders = [a_holding("h1", 4, "vision")]
    decision = decide(a_state([a_claim("w5", 2, "text"), claims[1]], holders, of=of))
    assert yielding(decision) == {"h1": "reclaim"}  # enough for both
    holders = [a_holding("h1", 2, "vision"), a_holding("h2", 2, "vision", preemptible=False)]
    assert not decide(a_state([a_claim("w5", 2, "text"), claims[1]], holders, of=of)).yielding


@pytest.mark.parametrize(("policy", "told"), [("any", {"h1"}), ("lower_priority", set()), ("never", set())])
def test_what_was_lent_is_taken_back_by_the_owners_rule(policy: str, told: set[str]) -> None:
    of = queues(a_queue("vision", 2, "lab", reclaim_within_cohort=policy), a_queue("speech", 2, "lab"))
    decision = decide(a_state([a_claim("w5", 1, "vision")], [a_holding("h1", 4, "speech", priority=3)], of=of))
    assert yielding(decision).keys() == told


def test_who_has_yielded_does_not_make_the_other_yield_in_turn() -> None:
    of = queues(*(a_queue(name, 2, "lab", **LOWER, **TAKES_BACK) for name in ("vision", "speech")))
    running = [a_holding("w9", 2, "vision", sequence=9)]
    back = a_claim("w1", 4, "speech", priority=9)
    decision = decide(a_state([back], running, of=of))
    assert (decision.starts, decision.yielding) == ({}, ())


def test_a_claim_of_two_replicas_calls_for_each_as_it_fits() -> None:
    holders = [a_holding(f"h{number}", 1, "vision", since_s=number) for number in range(4)]
    sweep = a_claim("w5", 1, "vision", priority=1, replicas=3, together=False)
    decision = decide(a_state([sweep], holders, of=ONE))
    assert {one.holding.id for one in decision.yielding} == {"h1", "h2", "h3"}
    again = decide(a_state([replace(sweep, called=True)], [replace(one, leaving=one.id != "h0") for one in holders], of=ONE))
    assert not again.yielding
