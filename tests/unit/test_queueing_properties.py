"""What holds for every decision, whatever the place: checked on many random ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as some

from jupyter_gpu.queueing import State, decide
from jupyter_gpu.schema import Claim, CohortSpec, Holding, Preemption, QueueSet, QueueSpec, Quota, Stock
from tests.unit.queueing_places import GPU, Judge, Toy, a_claim

MANY = settings(max_examples=100, derandomize=True, deadline=None, database=None)
PLACES = some.randoms(use_true_random=True)
"""Each stands for one random place. Nothing is made smaller after a failure, but ten times as many are tried in the same time."""


def quotas(random: Random, *, in_cohort: bool) -> dict[str, Quota]:
    def one(most: int) -> Quota:
        nominal = random.randint(0, most)
        return Quota(
            nominal=nominal,
            lending_limit=random.choice([None, None, random.randint(0, nominal)]) if in_cohort else None,
            borrowing_limit=random.choice([None, None, random.randint(0, most)]) if in_cohort else None,
        )

    return {GPU: one(5)} | ({"cpu": one(6)} if random.random() < 0.2 else {})


def a_preemption(random: Random) -> Preemption:
    reclaim = random.choice(["never", "lower_priority", "any", "any"])
    borrow = random.choice(["never", "lower_priority"]) if reclaim != "never" else "never"
    return Preemption(
        within_queue=random.choice(["never", "lower_priority", "lower_priority", "lower_or_newer_equal_priority"]),
        reclaim_within_cohort=reclaim,
        borrow_within_cohort=borrow,
        max_priority_threshold=random.choice([None, 0, 1]) if borrow != "never" else None,
    )


def a_queue_set(random: Random) -> QueueSet:
    cohorts = [CohortSpec(name="house", quotas=random.choice([{}, quotas(random, in_cohort=False)]))]
    cohorts += [
        CohortSpec(name=name, parent="house", quotas=random.choice([{}, quotas(random, in_cohort=True)]))
        for name in ("lab", "shop")
        if random.random() < 0.5
    ]
    queues = []
    for name in "abcd"[: random.randint(1, 4)]:
        cohort = random.choice([None, *(cohort.name for cohort in cohorts), "house"])
        shares = quotas(random, in_cohort=cohort is not None)
        queues.append(QueueSpec(name=name, cohort=cohort, quotas=shares, preemption=a_preemption(random)))
    return QueueSet(queues=tuple(queues), cohorts=tuple(cohorts), starve_after_s=random.choice([0, 50, 600]))


def some_stocks(random: Random) -> list[Stock]:
    capacities = [(model, random.randint(1, 8)) for model in random.choice([["A100"], ["A100", "H100"]])]
    return [Stock(GPU, model, capacity, capacity - (random.random() < 0.1)) for model, capacity in capacities]


def some_claim(random: Random, number: int, names: list[str]) -> Claim:
    together = random.random() < 0.7
    return a_claim(
        f"w{number}",
        random.randint(0, 4) if random.random() < 0.8 else 1,
        random.choice(names),
        sequence=number,
        priority=random.randint(0, 2),
        cpu=random.randint(1, 3) * 500,
        product=random.choice([None, None, None, "a100", "H100"]),
        replicas=random.choice([1, 1, 1, 2, 3]),
        together=together,
        at_once=None if together else random.choice([None, 1, 2]),
        max_runtime_s=random.choice([None, 10.0, 100.0]),
    )


def a_play(random: Random, then: Callable[[Toy], None] = lambda toy: None) -> Toy:
    """Return a place after some arrivals and ends; at each step it checks itself."""
    of = a_queue_set(random)
    toy = Toy(of, some_stocks(random), random)
    names = [queue.name for queue in of.queues]
    for number in range(1, random.randint(4, 16)):
        event = random.choice(["submit", "submit", "submit", "end", "wait"])
        if event == "submit":
            toy.submit(some_claim(random, number, names))
        elif event == "end" and toy.holdings:
            toy.end(*random.choice(sorted(toy.holdings, key=str)))
        else:
            toy.now_s += random.choice([1.0, 60.0, 700.0])
        toy.settle()
        then(toy)
    return toy


@MANY
@given(PLACES)
def test_nothing_is_ever_given_twice_or_above_a_quota_and_only_those_yield_who_must(random: Random) -> None:
    toy = a_play(random)
    assert not toy.judge.breaches(toy.holdings.values())


@MANY
@given(PLACES)
def test_once_nobody_comes_any_more_all_start_who_ever_can(random: Random) -> None:
    toy = a_play(random)
    ends = 4 * sum(claim.replicas for claim in toy.asked.values()) + 4
    for _ in range(ends):
        toy.settle()
        if not toy.holdings:
            break
        toy.now_s += 1
        toy.end(*min(toy.holdings, key=lambda key: toy.holdings[key].since_s))
    assert not toy.holdings
    for claim in toy.waiting.values():
        alone = Toy(toy.queues, toy.stocks)
        alone.submit(claim)
        alone.settle()
        assert not alone.holdings, f"{claim.id} would have fitted"


def a_random_state(random: Random) -> State:
    """Any state at all, also one that no decision of ours leads to."""
    of = a_queue_set(random)
    names = [*(queue.name for queue in of.queues), random.choice(["a", "gone"])]
    held = []
    for number in range(random.randint(0, 6)):
        claim = some_claim(random, number, names)
        held.append(
            Holding(
                claim.id,
                number,
                claim.queue,
                claim.priority,
                claim.each,
                {random.choice(["A100", "H100"]): claim.gpus} if claim.gpus else {},
                claim.device,
                since_s=float(random.randint(0, 3)),
                ends_by_s=random.choice([None, 1100.0, 1500.0]),
                preemptible=random.random() < 0.9,
                leaving=random.random() < 0.1,
            )
        )
    waiting = [some_claim(random, number + 10, names) for number in range(random.randint(1, 8))]
    waiting = [replace(claim, since_s=random.choice([0.0, 990.0])) for claim in waiting]
    stocks = some_stocks(random)
    if random.random() < 0.7:  # mostly all is taken
        stocks = [replace(stock, free=random.randint(0, 1)) for stock in stocks]
    return State(waiting, held, stocks, of, 1000.0)


@MANY
@given(PLACES)
def test_the_same_input_in_any_order_gives_the_same_decision(random: Random) -> None:
    state = a_random_state(random)
    shuffled = [list(part) for part in (state.claims, state.holdings, state.stocks)]
    for part in shuffled:
        random.shuffle(part)
    assert decide(State(*shuffled, state.queues, state.now_s)) == decide(state)


@MANY
@given(PLACES)
def test_while_those_are_leaving_who_were_told_nobody_else_is_told(random: Random) -> None:
    state = a_random_state(random)
    decision = decide(state)
    told = {(one.holding.id, one.holding.rank) for one in decision.yielding}
    leaving = [replace(one, leaving=one.leaving or (one.id, one.rank) in told) for one in state.holdings]
    called = [
        replace(claim, called=claim.id in decision.reasons and decision.reasons[claim.id].code == "queue.preempting")
        for claim in state.claims
    ]
    again = decide(replace(state, holdings=leaving, claims=called))
    assert not again.yielding


@MANY
@given(PLACES)
def test_nobody_is_told_to_yield_who_is_not_needed(random: Random) -> None:
    state = a_random_state(random)
    staying = [one for one in state.holdings if not one.leaving]
    judge = Judge(state.queues)
    if judge.breaches(staying):
        return  # where more is held than may be, also what one has free itself is not to be had, as with Kueue
    for claim in state.claims:
        alone = replace(state, claims=[claim], holdings=staying)
        decision = decide(alone)
        told = list(decision.yielding)
        if not claim.together or not told:
            continue
        gets = Holding(claim.id, 0, claim.queue, 0, {key: amount * claim.replicas for key, amount in claim.each.items()})
        for spared in told:
            gone = {id(one.holding) for one in told if one is not spared}
            rest = [one for one in staying if id(one) not in gone]
            suits = [stock for stock in state.stocks if claim.product is None or claim.product.lower() in stock.model.lower()]
            free = sum(stock.free for stock in suits) + sum(
                one.holding.models.get(stock.model, 0) for one in told if one is not spared for stock in suits
            )
            fits = free >= claim.gpus * claim.replicas
            if fits and not judge.breaches([*rest, gets]):
                reclaims = any(one.reason.facts["rule"] == "reclaim" for one in told)
                assert reclaims and judge.borrows(claim.queue, [*rest, gets]), f"{spared.holding.id} was not needed"
