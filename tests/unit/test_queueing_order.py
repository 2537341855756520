"""Who starts, in which order, and who is not overtaken for ever."""

from __future__ import annotations

from dataclasses import replace

from jupyter_gpu.queueing import decide
from jupyter_gpu.schema import QueueSet, Quota
from tests.unit.queueing_places import GPU, MIG, a_claim, a_holding, a_queue, a_state, code, gpus, queues

COHORT = queues(a_queue("vision", 2, "lab"), a_queue("speech", 2, "lab"))


def test_with_nobody_there_nothing_is_decided() -> None:
    decision = decide(a_state())
    assert (dict(decision.starts), decision.yielding, dict(decision.reasons)) == ({}, (), {})


def test_where_no_queue_is_set_there_is_one_with_all_devices() -> None:
    decision = decide(a_state([a_claim("w1", 2), a_claim("w2", 2)], stocks=[gpus(3)]))
    assert decision.starts == {"w1": 1}
    assert decision.positions == {"w2": 1}
    assert decision.reasons["w2"].message == "waits for 2 nvidia.com/gpu: 1 of 3 free"


def test_who_wants_no_device_never_waits_for_one() -> None:
    assert decide(a_state([a_claim("w1", 0)], stocks=[gpus(1, 0)])).starts == {"w1": 1}


def test_higher_priority_goes_first_then_who_came_first() -> None:
    claims = [a_claim("w3"), a_claim("w1"), a_claim("w2", priority=1)]
    assert list(decide(a_state(claims, stocks=[gpus(2)])).starts) == ["w2", "w1"]


def test_who_called_others_goes_first_in_its_queue() -> None:
    claims = [a_claim("w1", 2, priority=5), a_claim("w2", 2, called=True)]
    assert decide(a_state(claims, stocks=[gpus(2)])).starts == {"w2": 1}


def test_who_need_not_borrow_goes_before_who_must_whatever_the_priorities() -> None:
    claims = [a_claim("w1", 4, "vision", priority=9), a_claim("w2", 2, "speech")]
    assert decide(a_state(claims, of=COHORT)).starts == {"w2": 1}


def test_queues_take_turns() -> None:
    claims = [a_claim("w1", 1, "vision"), a_claim("w2", 1, "vision"), a_claim("w3", 1, "vision"), a_claim("w4", 1, "speech")]
    assert list(decide(a_state(claims, of=COHORT)).starts) == ["w1", "w4", "w2", "w3"]


def test_smaller_work_overtakes_what_does_not_fit() -> None:
    decision = decide(a_state([a_claim("w1", 3), a_claim("w2", 1)], stocks=[gpus(4, 2)]))
    assert decision.starts == {"w2": 1}
    assert decision.look_again_s == 600


def test_one_that_has_waited_long_is_not_overtaken() -> None:
    state = a_state([a_claim("w1", 3), a_claim("w2", 1)], [a_holding("h9", 2)], [gpus(4, 2)], now_s=600)
    decision = decide(state)
    assert decision.starts == {}
    assert decision.reasons["w1"].facts["kept"]
    assert decision.reasons["w2"].message == "waits for 1 nvidia.com/gpu: 2 free, and kept for w1, which has waited long"
    assert decision.look_again_s is None


def test_one_that_has_waited_long_is_overtaken_by_who_must_have_ended_before_it_could_start() -> None:
    holder = a_holding("h9", 2, ends_by_s=900)
    short, long = a_claim("w2", 1, max_runtime_s=300), a_claim("w3", 1, max_runtime_s=301)
    decision = decide(a_state([a_claim("w1", 3), short, long], [holder], [gpus(4, 2)], now_s=600))
    assert decision.starts == {"w2": 1}
    assert code(decision, "w3") == "queue.kept"


def test_higher_priority_overtakes_one_that_has_waited_long() -> None:
    claims = [a_claim("w1", 3), a_claim("w2", 1, priority=1, since_s=600)]
    assert decide(a_state(claims, [a_holding("h9", 2)], [gpus(4, 2)], now_s=600)).starts == {"w2": 1}


def test_what_one_that_has_waited_long_does_not_need_is_not_kept() -> None:
    claims = [a_claim("w1", 2, product="A100"), a_claim("w2", 1)]
    state = a_state(claims, [a_holding("h9", 1)], [gpus(2, 1), gpus(2, model="H100")], now_s=600)
    assert decide(state).starts == {"w2": 1}
    assert decide(state).models == {"w2": {"H100": 1}}


def test_for_one_that_would_not_even_fit_alone_nothing_is_kept() -> None:
    """Somebody else computes on a device, so that three are never free."""
    assert decide(a_state([a_claim("w1", 3), a_claim("w2", 1)], stocks=[gpus(3, 2)], now_s=600)).starts == {"w2": 1}


def test_for_a_borrower_that_has_waited_long_others_do_not_leave_their_own() -> None:
    claims = [a_claim("w1", 3, "vision"), a_claim("w2", 1, "speech")]
    state = a_state(claims, [a_holding("h8", 1, "speech"), a_holding("h9", 1, "vision")], of=COHORT, now_s=600)
    assert decide(state).starts == {"w2": 1}


def test_a_stream_of_small_work_does_not_keep_a_large_one_waiting() -> None:
    running = [a_holding(f"h{number}", 1, since_s=number) for number in range(4)]
    large = a_claim("w0", 4, sequence=0)
    for step in range(1, 5):
        running = running[1:]  # the oldest ends, another small one comes
        state = a_state([large, a_claim(f"w{step}", 1, since_s=600)], running, [gpus(4, 4 - len(running))], now_s=600 + step)
        starts = decide(state).starts
        assert starts == ({"w0": 1} if step == 4 else {})


def test_short_work_that_may_be_slow_to_end_does_not_overtake_for_ever() -> None:
    """Each ends some time after its limit at the latest; the next must not be let in for that."""
    large = a_claim("w0", 2, sequence=0, max_runtime_s=100)
    running = a_holding("h1", 1, since_s=598, max_runtime_s=5, ends_by_s=913)
    for now_s in (600, 602, 604):
        state = a_state([large, a_claim("w1", 1, max_runtime_s=5)], [running], [gpus(2, 1)], now_s=now_s)
        assert decide(state).starts == {}
    assert decide(replace(state, claims=[large, a_claim("w1", 1, max_runtime_s=5)], now_s=598)).starts == {"w1": 1}


def test_a_gang_starts_with_all_its_replicas_or_none() -> None:
    gang = a_claim("w1", 2, replicas=2)
    assert decide(a_state([gang], stocks=[gpus(4, 3)])).starts == {}
    assert decide(a_state([gang], stocks=[gpus(4)])).starts == {"w1": 2}


def test_what_starts_as_it_fits_starts_as_many_as_fit_and_may() -> None:
    sweep = a_claim("w1", 1, replicas=5, together=False)
    assert decide(a_state([sweep], stocks=[gpus(4, 3)])).starts == {"w1": 3}
    assert decide(a_state([replace(sweep, at_once=2)], stocks=[gpus(4, 3)])).starts == {"w1": 2}
    none = decide(a_state([replace(sweep, at_once=0)], stocks=[gpus(4, 3)]))
    assert (dict(none.starts), dict(none.reasons)) == ({}, {})


def test_what_has_a_replica_that_runs_has_no_position_but_a_reason() -> None:
    sweep = a_claim("w1", 1, replicas=5, together=False)
    decision = decide(a_state([sweep, a_claim("w2", 1)], [a_holding("w1", 1, rank=0)], [gpus(1, 0)]))
    assert decision.positions == {"w2": 1}
    assert decision.reasons.keys() == {"w1", "w2"}


def test_devices_that_others_ask_for_by_name_are_taken_last() -> None:
    claims = [a_claim("w1", 1), a_claim("w2", 1, product="h100")]
    decision = decide(a_state(claims, stocks=[gpus(1, model="NVIDIA H100"), gpus(1, model="NVIDIA V100")]))
    assert decision.models == {"w1": {"NVIDIA V100": 1}, "w2": {"NVIDIA H100": 1}}


def test_of_devices_that_nobody_asks_for_by_name_those_are_taken_of_which_there_are_most() -> None:
    stocks = [gpus(2, model="NVIDIA A100"), gpus(6, 1, model="NVIDIA T4")]
    assert decide(a_state([a_claim("w1", 2)], stocks=stocks)).models == {"w1": {"NVIDIA T4": 1, "NVIDIA A100": 1}}
    assert decide(a_state([a_claim("w1", 1)], stocks=stocks)).models == {"w1": {"NVIDIA T4": 1}}


def test_kinds_of_devices_do_not_wait_for_each_other() -> None:
    claims = [a_claim("w1", 2), a_claim("w2", 1, device=MIG)]
    decision = decide(a_state(claims, stocks=[gpus(2, 0), gpus(1, model="", resource=MIG)], now_s=600))
    assert decision.starts == {"w2": 1}


def test_cores_count_only_where_a_quota_of_them_is_set() -> None:
    free, bound = a_queue("free", 2), a_queue("bound", 2, quotas={"cpu": Quota(nominal=1)})
    claims = [a_claim("w1", 1, "free", cpu=64_000), a_claim("w2", 1, "bound", cpu=1000), a_claim("w3", 1, "bound", cpu=500)]
    decision = decide(a_state(claims, of=queues(free, bound)))
    assert decision.starts == {"w1": 1, "w2": 1}
    assert decision.reasons["w3"].message == "waits for 0.5 cores: queue bound holds 1 core of its 1 core"


def test_a_quota_that_is_used_up_is_told_with_its_numbers() -> None:
    of = queues(a_queue("vision", 1, "lab", borrowing_limit=1), a_queue("speech", 3, "lab", lending_limit=1))
    decision = decide(a_state([a_claim("w1", 1, "vision")], [a_holding("h9", 2, "vision")], of=of))
    reason = decision.reasons["w1"]
    assert reason.code == "queue.quota"
    assert reason.message == "waits for 1 nvidia.com/gpu: queue vision holds 2 of its 1, and may borrow no more than 1"
    assert reason.facts == {
        "resource": GPU, "asked": 1, "queue": "vision", "used": 2, "nominal": 1, "most": 2, "left": 0,
    }  # fmt: skip


def test_devices_that_a_queue_has_no_quota_of_any_more_are_told() -> None:
    of = queues(a_queue("vision", 1).model_copy(update={"quotas": {}}))
    reason = decide(a_state([a_claim("w1", 1, "vision")], of=of, stocks=[gpus(4)])).reasons["w1"]
    assert (reason.code, reason.facts["most"]) == ("queue.quota", 0)
    assert reason.message == "waits for 1 nvidia.com/gpu: queue vision has none of them to give any more"


def test_a_queue_that_is_gone_is_told() -> None:
    decision = decide(a_state([a_claim("w1", 1, "text")], of=COHORT))
    assert code(decision, "w1") == "queue.gone"
    assert decision.starts == {}


def test_what_is_coming_is_kept_for_the_first_that_fits() -> None:
    claims = [a_claim("w1", 3), a_claim("w2", 1)]
    decision = decide(a_state(claims, [a_holding("h9", 2, leaving=True)], [gpus(4, 2)]))
    assert decision.starts == {"w2": 1}  # one more than is needed is there
    decision = decide(a_state([a_claim("w1", 4), a_claim("w2", 1)], [a_holding("h9", 2, leaving=True)], [gpus(4, 2)]))
    assert decision.starts == {}
    assert (code(decision, "w1"), code(decision, "w2")) == ("queue.coming", "queue.kept")


def test_equal_wants_have_equal_reasons_however_many_are_ahead() -> None:
    decision = decide(a_state([a_claim(f"w{number}", 2) for number in range(9)], of=QueueSet(), stocks=[gpus(4, 1)]))
    assert len({reason.message for reason in decision.reasons.values()}) == 1
    assert list(decision.positions.values()) == list(range(1, 10))
