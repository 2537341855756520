"""What is told before anything is submitted, what is refused, and how queues stand."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpu.errors import InvalidRequestError, QuotaExceededError
from jupyter_gpu.queueing import State, check_quota, forecast, queue_statuses
from jupyter_gpu.schema import Basis, Place, QueueSet, QueueStatus, Quota, Resources, Start
from tests.builders import a_workload
from tests.unit.queueing_places import GPU, LOWER, a_claim, a_holding, a_queue, a_state, gpus, queues


def a_place(state: State, **fields: Any) -> Place:
    capacity: dict[str, int] = {}
    for stock in state.stocks:
        capacity[stock.resource] = capacity.get(stock.resource, 0) + stock.capacity
    known = {"stocks": tuple(state.stocks), "claims": tuple(state.claims), "holdings": tuple(state.holdings)}
    fields = {"decides": True, "queue_set": state.queues, "capacity": capacity, "time_s": state.now_s, **known, **fields}
    return Place(name="here", backend="memory", identity="me", **fields)


def asked(gpus: int, queue: str = "default", **fields: Any) -> Any:
    return a_workload("asked", queue=queue, resources=Resources(gpus=gpus), **fields)


def test_what_fits_starts_now() -> None:
    told = forecast(asked(2), a_place(a_state(stocks=[gpus(4, 2)])))
    assert (told.starts_now, told.basis, told.within_s) == (True, Basis.EXACT, 0.0)
    assert told.message == "it starts now with 2 GPUs"


def test_what_does_not_is_told_how_it_would_stand() -> None:
    of = queues(a_queue("vision", 5, "lab"), a_queue("speech", 2, "lab", lending_limit=0))
    holders = [a_holding("h9", 4, "vision", ends_by_s=2280, name="train-7", owner="ana")]
    ahead = [a_claim("w1", 3, "vision"), a_claim("w2", 4, "vision", name="sweep")]
    told = forecast(asked(2, "vision"), a_place(a_state(ahead, holders, of=of)))
    assert not told.starts_now
    assert told.message == (
        "3 GPUs free, your queue may take 1 more: gpus=1 starts now; "
        "2 would be third in line behind ana/train-7 (4 GPUs, at most 38 min left)"
    )
    assert told.reason
    assert told.reason.code == "queue.quota"
    assert (told.position, told.smaller_gpus, told.short) == (3, 1, {GPU: 1})
    assert [one.id for one in told.ahead] == ["w1", "w2"]
    assert [(one.name, one.holds, one.ends_within_s) for one in told.holders] == [("train-7", {GPU: 4}, 2280)]


def test_when_it_starts_at_the_latest_follows_from_the_limits_of_all_before_it() -> None:
    holders = [a_holding("h9", 4, ends_by_s=100)]
    place = a_place(a_state([a_claim("w1", 4, max_runtime_s=50)], holders, [gpus(4, 0)]))
    told = forecast(asked(4), place)
    assert told.within_s == 100 + 50 + 310  # who starts later may need the usual time to start, and to end
    assert forecast(asked(4), a_place(a_state([a_claim("w1", 4)], holders, [gpus(4, 0)]))).within_s is None


def test_what_those_in_front_may_take_to_start_to_end_and_to_try_again_is_counted() -> None:
    holders = [a_holding("h9", 4, ends_by_s=100)]
    slow = a_claim("w1", 4, max_runtime_s=50, start_timeout_s=1000, grace_s=60, retries=2)
    assert forecast(asked(4), a_place(a_state([slow], holders, [gpus(4, 0)]))).within_s == 100 + 50 + 3 * 1060


def test_a_smaller_size_to_which_somebody_must_yield_is_not_told() -> None:
    of = queues(a_queue("vision", 4, **LOWER))
    sweep = asked(2, "vision", priority=1, replicas=2, start=Start.AS_THEY_FIT)
    told = forecast(sweep, a_place(a_state([], [a_holding("h9", 3, "vision")], of=of)))
    assert [one.id for one in told.preempts] == ["h9"]
    assert told.smaller_gpus is None  # with 1 its second replica would have h9 yield


def test_who_would_have_to_yield_is_named() -> None:
    of = queues(a_queue("vision", 4, **LOWER))
    told = forecast(asked(4, "vision", priority=1), a_place(a_state([], [a_holding("h9", 4, "vision", grace_s=5)], of=of)))
    assert [one.id for one in told.preempts] == ["h9"]
    assert told.within_s == 5
    assert told.message == "0 GPUs free: it starts as soon as h9 (4 GPUs) has made room for it"


def test_one_that_waits_already_is_told_from_its_own_place_in_line() -> None:
    claims = [a_claim("asked", 2, sequence=1), a_claim("w2", 2)]
    told = forecast(asked(2), a_place(a_state(claims, [a_holding("h9", 2)], [gpus(2, 0)])))
    assert (told.position, told.ahead) == (1, ())


def test_what_can_never_start_is_told_with_what_would() -> None:
    told = forecast(asked(9), a_place(a_state(stocks=[gpus(4)])))
    assert (told.never, told.starts_now, told.smaller_gpus) == (True, False, 4)
    assert told.message.endswith("gpus=4 starts now")


def test_of_a_sweep_it_is_told_how_many_start() -> None:
    sweep = asked(1, replicas=5, start=Start.AS_THEY_FIT)
    told = forecast(sweep, a_place(a_state(stocks=[gpus(4, 3)])))
    assert told.message == "3 of its 5 replicas start now, the others as they fit"


def test_where_another_scheduler_decides_it_is_an_estimate_from_quotas_and_devices() -> None:
    of = QueueSet(queues=(a_queue("vision", 2),))
    used = QueueStatus(name="vision", quotas={GPU: Quota(nominal=2)}, used={GPU: 2})
    place = a_place(a_state(stocks=[]), decides=False, queue_set=of, queues=(used,), capacity={GPU: 8}, free={GPU: 6})
    told = forecast(asked(1, "vision"), place)
    assert (told.basis, told.starts_now) == (Basis.ESTIMATE, False)
    assert told.reason
    assert told.reason.code == "queue.quota"
    assert forecast(asked(1, "unread"), place).starts_now


def an_opaque_place(**fields: Any) -> Place:
    """Return one of which nodes are hidden, or may be added."""
    return a_place(a_state(stocks=[]), **{"decides": False, "may_grow": True, "capacity": {}, **fields})


def test_where_nothing_is_seen_it_cannot_be_told() -> None:
    cores = QueueSet(queues=(a_queue("default", 0).model_copy(update={"quotas": {"cpu": Quota(nominal=8)}}),))
    for place in (an_opaque_place(), an_opaque_place(queue_set=cores)):
        told = forecast(asked(2), place)
        assert (told.starts_now, told.never, told.basis, told.reason) == (False, False, Basis.ESTIMATE, None)
        assert told.message == "it can't be told: here shows no nvidia.com/gpu, and may have more"


def test_where_nodes_may_be_added_more_than_there_is_may_still_come() -> None:
    place = an_opaque_place(capacity={GPU: 4}, stocks=(gpus(4),))
    told = forecast(asked(8), place)
    assert (told.never, told.smaller_gpus) == (False, 4)
    assert told.message == "it can't be told: here shows 4 nvidia.com/gpu, and may have more; gpus=4 starts now"
    assert forecast(asked(4), place).starts_now


def test_what_a_quota_never_allows_is_told_also_where_nothing_else_is_seen() -> None:
    told = forecast(asked(9), an_opaque_place(queue_set=QueueSet(queues=(a_queue("default", 8),)), stocks=(gpus(8, model=""),)))
    assert told.never
    assert told.message.startswith("queue default can never give 9 nvidia.com/gpu: it has 8")


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (a_claim("w1", 1, "text"), "here has no queue 'text'; there are: speech, vision"),
        (a_claim("w1", 9, "vision"), "here can never give 9 nvidia.com/gpu: it has 8"),
        (a_claim("w1", 2, "vision", replicas=3), "queue vision can never give 6 nvidia.com/gpu: it has 5; 4 of its own"),
        (a_claim("w1", 1, "vision", product="H200"), r"here can never give 1 nvidia.com/gpu \(H200\): it has none; ask for"),
        (a_claim("w1", 1, "vision", device="amd.com/gpu"), "here can never give 1 amd.com/gpu: it has none"),
        (a_claim("w1", 1, "speech", cpu=9000), "queue speech can never give 9 cpu: it has 8"),
        (a_claim("w1", 1, "none"), "queue none can never give 1 nvidia.com/gpu: it has none"),
    ],
)
def test_what_waiting_cannot_help_is_refused(claim: Any, words: str) -> None:
    of = queues(
        a_queue("vision", 4, "lab", borrowing_limit=1),
        a_queue("speech", 4, "lab", quotas={"cpu": Quota(nominal=8)}),
        a_queue("none", 0).model_copy(update={"quotas": {}}),
    )
    words = words.replace("speech, vision", "none, speech, vision")
    with pytest.raises((InvalidRequestError, QuotaExceededError), match=words):
        check_quota(claim, of, [gpus(8)], "here")


def test_a_sweep_is_refused_only_where_one_replica_could_not_start() -> None:
    check_quota(a_claim("w1", 2, replicas=9, together=False), QueueSet(), [gpus(2)], "here")


def test_queues_tell_what_they_hold_and_borrow_and_who_waits() -> None:
    of = queues(a_queue("vision", 2, "lab"), a_queue("speech", 2, "lab"))
    holders = [a_holding("h2", 1, "vision", since_s=2), a_holding("h1", 2, "vision", since_s=1), a_holding("h0", 0, "vision")]
    claims = [a_claim("w2", 1, "vision"), a_claim("w1", 1, "vision", priority=1), a_claim("w3", 1, "gone")]
    vision, speech, gone = queue_statuses(a_state(claims, holders, of=of))
    assert (vision.used, vision.borrowed) == ({GPU: 3}, {GPU: 1})
    assert (vision.holders, vision.waiters) == (("h1", "h2"), ("w1", "w2"))
    assert (speech.used, speech.cohort) == ({GPU: 0}, "lab")
    assert (gone.name, gone.waiters) == ("gone", ("w3",))
    assert queue_statuses(a_state(claims, holders, of=of), mine={"w2"})[0].waiters == ("w2",)
