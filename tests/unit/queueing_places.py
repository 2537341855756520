"""For the tests of queueing: valid claims and holdings, a toy place that carries decisions out, and a judge of what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from jupyter_gpu.queueing import Decision, State, decide
from jupyter_gpu.schema import Claim, CohortSpec, Holding, Preemption, QueueSet, QueueSpec, Quota, Stock, units

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
LOWER = {"within_queue": "lower_priority"}
TAKES_BACK = {"reclaim_within_cohort": "any"}


def a_claim(id: str, gpus: int = 1, queue: str = "default", **fields: Any) -> Claim:
    sequence = fields.pop("sequence", None)
    each = {"cpu": fields.pop("cpu", 1000), "memory": fields.pop("memory", 2**30)}
    device = fields.pop("device", GPU) if gpus else None
    if device:
        each[device] = gpus
    number = int("".join(letter for letter in id if letter.isdigit()) or 0)
    return Claim(id, number if sequence is None else sequence, queue, fields.pop("priority", 0), each, device, **fields)


def a_holding(id: str, gpus: int = 1, queue: str = "default", *, model: str = "A100", **fields: Any) -> Holding:
    claim = a_claim(id, gpus, queue, **{key: fields.pop(key) for key in ("sequence", "priority", "device") if key in fields})
    return Holding(id, claim.sequence, queue, claim.priority, claim.each, {model: gpus} if gpus else {}, claim.device, **fields)


def gpus(capacity: int, free: int | None = None, model: str = "A100", resource: str = GPU) -> Stock:
    return Stock(resource, model, capacity, capacity if free is None else free)


def a_queue(name: str, nominal: float, cohort: str | None = None, **fields: Any) -> QueueSpec:
    limits = {key: fields.pop(key) for key in ("borrowing_limit", "lending_limit") if key in fields}
    quotas = {GPU: Quota(nominal=nominal, **limits)} | fields.pop("quotas", {})
    return QueueSpec(name=name, cohort=cohort, quotas=quotas, preemption=Preemption(**fields))


def queues(*those: QueueSpec, cohorts: Iterable[CohortSpec] = (), starve_after_s: float = 600) -> QueueSet:
    return QueueSet(queues=those, cohorts=tuple(cohorts), starve_after_s=starve_after_s)


def a_state(
    claims: Sequence[Claim] = (),
    holdings: Sequence[Holding] = (),
    stocks: Sequence[Stock] | None = None,
    of: QueueSet | None = None,
    now_s: float = 0.0,
) -> State:
    """Return a state; without stocks there are as many devices as the quotas come to, and free is what nobody holds."""
    of = of or QueueSet()
    if stocks is None:
        shares = [one.quotas for one in of.queues] + [one.quotas for one in of.cohorts]
        capacity = round(sum(quotas[GPU].nominal for quotas in shares if GPU in quotas))
        stocks = [gpus(capacity, capacity - sum(one.holds.get(GPU, 0) for one in holdings))]
    return State(claims, holdings, stocks, of, now_s)


def yielding(decision: Decision) -> dict[str, str]:
    """Return who must yield, and by which rule."""
    return {one.holding.id: one.reason.facts["rule"] for one in decision.yielding}


def code(decision: Decision, id: str) -> str:
    return decision.reasons[id].code


@dataclass
class Node:
    """A queue or cohort, for the judge."""

    parent: str | None
    quota: Quota | None


class Judge:
    """Says whether holdings keep to the quotas: by plain sums from the leaves up, at every node of every resource."""

    def __init__(self, of: QueueSet) -> None:
        self.queues = of
        names = {queue.cohort for queue in of.queues} | {cohort.parent for cohort in of.cohorts}
        self.cohorts = {name: CohortSpec(name=name) for name in names if name is not None}
        self.cohorts |= {cohort.name: cohort for cohort in of.cohorts}
        self.resources = {resource for one in (*of.queues, *of.cohorts) for resource in one.quotas}

    def breaches(self, holdings: Iterable[Holding]) -> list[str]:
        """Return each quota that is not kept."""
        found: list[str] = []
        for resource in self.resources:
            held = Counter[str]()
            for one in holdings:
                held[one.queue] += one.holds.get(resource, 0)
            for name, cohort in self.cohorts.items():
                if cohort.parent is None and self._mentions(name, resource):
                    own, used = self._cohort(name, resource, held, found)
                    if used > own:
                        found.append(f"{name} holds {used} of {own} {resource}")
            for queue in self.queues.queues:
                own = self._nominal(queue.quotas, resource)
                if queue.cohort is None and resource in queue.quotas and held[queue.name] > own:
                    found.append(f"{queue.name} holds {held[queue.name]} of {own} {resource}")
        return found

    def _mentions(self, cohort: str, resource: str) -> bool:
        """Whether anything in a cohort has a quota of a resource; cores and memory count only there."""
        return (
            resource in self.cohorts[cohort].quotas
            or any(resource in queue.quotas for queue in self.queues.queues if queue.cohort == cohort)
            or any(self._mentions(child.name, resource) for child in self.cohorts.values() if child.parent == cohort)
        )

    def _nominal(self, quotas: Mapping[str, Quota], resource: str) -> int:
        return units(resource, quotas[resource].nominal) if resource in quotas else 0

    def _cohort(self, name: str, resource: str, held: Mapping[str, int], found: list[str]) -> tuple[int, int]:
        """Return what a cohort has, and what of it is in use."""
        members = [
            (one.name, one.quotas.get(resource), self._nominal(one.quotas, resource), held.get(one.name, 0))
            for one in self.queues.queues
            if one.cohort == name
        ]
        for child in self.cohorts.values():
            if child.parent == name:
                own, used = self._cohort(child.name, resource, held, found)
                members.append((child.name, child.quotas.get(resource), own, used))
        has, uses = self._nominal(self.cohorts[name].quotas, resource), 0
        for member, quota, own, used in members:
            lent = own if quota is None or quota.lending_limit is None else min(own, units(resource, quota.lending_limit))
            if quota is not None and quota.borrowing_limit is not None and used > own + units(resource, quota.borrowing_limit):
                found.append(f"{member} holds {used} of its {own} {resource} and may not borrow so much")
            has += lent
            uses += max(0, used - (own - lent))
        return has, uses

    def borrows(self, queue: str, holdings: Iterable[Holding]) -> bool:
        """Whether a queue holds more of some resource than its own."""
        spec = next(one for one in self.queues.queues if one.name == queue)
        held = [one for one in holdings if one.queue == queue]
        return any(
            sum(one.holds.get(resource, 0) for one in held) > self._nominal(spec.quotas, resource) for resource in self.resources
        )


class Toy:
    """A place that does what is decided, at once; it checks itself against the judge."""

    def __init__(self, of: QueueSet, stocks: Sequence[Stock], random: Random | None = None) -> None:
        self.queues, self.stocks = of, list(stocks)
        self.judge = Judge(of)
        self.now_s = 0.0
        self.asked: dict[str, Claim] = {}
        self.waiting: dict[str, Claim] = {}
        self.holdings: dict[tuple[str, int | None], Holding] = {}
        self.random = random or Random(0)
        self.started: list[str] = []
        self.preempted: list[str] = []
        self._ticks = 0

    def state(self) -> State:
        held = Counter[tuple[str, str]]()
        for one in self.holdings.values():
            held.update({(one.device or "", model): count for model, count in one.models.items()})
        stocks = [replace(one, free=one.free - held[one.resource, one.model]) for one in self.stocks]
        claims, holdings = list(self.waiting.values()), list(self.holdings.values())
        for those in (claims, holdings, stocks):
            self.random.shuffle(those)
        return State(claims, holdings, stocks, self.queues, self.now_s)

    def submit(self, claim: Claim) -> None:
        claim = replace(claim, since_s=self.now_s)
        self.asked[claim.id] = self.waiting[claim.id] = claim

    def end(self, id: str, rank: int | None = None) -> None:
        self.holdings.pop((id, rank))
        claim = self.waiting.get(id)
        if claim is not None and claim.at_once is not None:
            self.waiting[id] = replace(claim, at_once=claim.at_once + 1)

    def settle(self, rounds: int = 300) -> Decision:
        """Decide, and do it, until nothing changes."""
        for _ in range(rounds):
            state = self.state()
            decision = decide(state)
            other = self.state()
            again = decide(other)  # in another order
            assert again == decision, (state, other, decision, again)
            self._do(decision)
            if not decision.starts and not decision.yielding:
                return decision
        raise AssertionError("it never comes to rest")

    def _do(self, decision: Decision) -> None:
        for id, count in decision.starts.items():
            self._start(id, count, dict(decision.models.get(id, {})))
        held = list(self.holdings.values())
        self._check(decision)
        for id in self.waiting:
            called = id in decision.reasons and decision.reasons[id].code == "queue.preempting"
            self.waiting[id] = replace(self.waiting[id], called=called)
        for one in decision.yielding:
            self._check_rule(one.holding, one.by, one.reason.facts["rule"], held)
        keys = [(one.holding.id, one.holding.rank) for one in decision.yielding]
        for key in keys:
            self.holdings[key] = replace(self.holdings[key], leaving=True)
        if keys:
            calm = decide(self.state())
            assert not calm.yielding, "it tells more to yield while those are leaving"
            for id, count in calm.starts.items():
                self._start(id, count, dict(calm.models.get(id, {})))
        for number, key in enumerate(keys):
            self._again(self.holdings.pop(key))
            if number % 2:  # some leave one after the other
                midway = decide(self.state())
                assert not midway.yielding or all(one.holding.id != key[0] for one in midway.yielding)

    def _again(self, one: Holding) -> None:
        self.preempted.append(one.id)
        asked, claim = self.asked[one.id], self.waiting.get(one.id)
        if one.rank is None or claim is None:
            claim = replace(asked, since_s=self.now_s, called=False, replicas=asked.replicas if one.rank is None else 0)
        if one.rank is not None:
            running = sum(1 for id, _ in self.holdings if id == one.id)
            at_once = None if asked.at_once is None else asked.at_once - running
            claim = replace(claim, replicas=claim.replicas + 1, at_once=at_once)
        self.waiting[one.id] = claim

    def _start(self, id: str, count: int, models: dict[str, int]) -> None:
        claim = self.waiting[id]
        assert claim.replicas == count if claim.together else 0 < count <= claim.replicas
        if claim.at_once is not None:
            assert count <= claim.at_once
        assert sum(models.values()) == claim.gpus * count
        assert all(claim.product is None or claim.product.lower() in model.lower() for model in models)
        self.started.append(id)
        if claim.replicas == count:
            del self.waiting[id]
        else:
            at_once = None if claim.at_once is None else claim.at_once - count
            self.waiting[id] = replace(claim, replicas=claim.replicas - count, at_once=at_once)
        parts = [(None, count)] if claim.together else [(rank, 1) for rank in self._free_ranks(id, count)]
        units_ = [model for model, number in models.items() for _ in range(number)]
        for rank, replicas in parts:
            taken, units_ = units_[: claim.gpus * replicas], units_[claim.gpus * replicas :]
            self._ticks += 1
            ends = None if claim.max_runtime_s is None else self.now_s + claim.max_runtime_s
            self.holdings[id, rank] = Holding(
                id,
                claim.sequence,
                claim.queue,
                claim.priority,
                {resource: amount * replicas for resource, amount in claim.each.items()},
                dict(Counter(taken)),
                claim.device,
                rank,
                self.now_s + self._ticks * 1e-3,
                ends,
            )

    def _free_ranks(self, id: str, count: int) -> list[int]:
        used = {rank for other, rank in self.holdings if other == id}
        return [rank for rank in range(self.asked[id].replicas) if rank not in used][:count]

    def _check(self, decision: Decision) -> None:
        assert not self.judge.breaches(self.holdings.values())
        for stock in self.state().stocks:
            assert stock.free >= 0, "a device is held twice"
        for claim in self.waiting.values():
            if claim.at_once != 0:
                assert claim.id in decision.reasons
        running = {id for id, _ in self.holdings}
        assert decision.positions.keys() == {id for id in decision.reasons if id not in running}

    def _check_rule(self, victim: Holding, by: Claim, rule: str, holdings: Sequence[Holding]) -> None:
        policy = next(one for one in self.queues.queues if one.name == by.queue).preemption
        assert victim.preemptible
        if rule == "in_queue":
            assert victim.queue == by.queue
            newer = victim.priority == by.priority and victim.sequence > by.sequence
            assert victim.priority < by.priority or (newer and policy.within_queue == "lower_or_newer_equal_priority")
            assert policy.within_queue != "never"
            return
        assert victim.queue != by.queue
        assert self.judge.borrows(victim.queue, holdings)
        assert policy.reclaim_within_cohort == "any" or (
            policy.reclaim_within_cohort == "lower_priority" and victim.priority < by.priority
        )
        if rule == "borrowing":
            assert policy.borrow_within_cohort == "lower_priority"
            assert victim.priority < by.priority
            assert policy.max_priority_threshold is None or victim.priority <= policy.max_priority_threshold
