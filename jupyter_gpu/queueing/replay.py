"""When something starts at the latest, if all that hold devices stay as long as their limits allow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jupyter_gpu.queueing.deciding import decide
from jupyter_gpu.queueing.decisions import Decision, State
from jupyter_gpu.schema import Claim, Holding, Kind, Stock

_STEPS = 200
"""After so many steps it is too far off to be told."""


def starts_within_s(state: State, id: str) -> float | None:
    """Return how long a waiting Workload waits at the most, by the limits of all before it.

    The steps of the place are gone through one after the other: at each, those end whose limit is reached, and it is decided
    anew. Who would come later is not foreseen. It may well start earlier, by overtaking those in front of it who ask for more;
    but that also hangs on who ends early, so it is not counted on.

    Returns:
        Seconds from the state's time; None if one that must end before, or that may overtake it, has no limit, or it is too
        far off.
    """
    world = _World(state)
    if world.may_be_overtaken_for_ever(id) or world.may_come_back(id):
        return None
    for _ in range(_STEPS):
        decision = decide(world.state())
        if id in decision.starts:
            if not world.is_overtaking(id, decision):
                return world.now_s - state.now_s
            decision = decide(world.state(without=id))
        world.carry_out(decision)
        if not world.move(decision):
            return None
    return None


class _World:
    """A place that goes on by itself."""

    def __init__(self, state: State) -> None:
        self._first = state
        self.now_s = state.now_s
        self._claims = {claim.id: claim for claim in state.claims}
        self._holdings = {(one.id, one.rank): one for one in state.holdings}
        self._free = {(stock.resource, stock.model): stock.free for stock in state.stocks}
        self._ranks = 1 + max((one.rank or 0 for one in state.holdings), default=0)
        self._yielded: dict[tuple[str, int | None], Claim] = {}

    def may_be_overtaken_for_ever(self, id: str) -> bool:
        """Whether one without a limit stands behind it that might fit when it does not, should others end early."""
        claim = self._claims[id]
        return any(
            other.device == claim.device
            and other.max_runtime_s is None
            and (-other.priority, other.sequence) > (-claim.priority, claim.sequence)
            and ((other.queue, other.product) != (claim.queue, claim.product) or other.gpus_at_once < claim.gpus_at_once)
            for other in self._claims.values()
        )

    def may_come_back(self, id: str) -> bool:
        """Whether one is leaving that stands in front of it: it may have been told to yield, and be QUEUED again after that."""
        claim = self._claims[id]
        return any(
            one.leaving
            and one.preemptible
            and one.kind is not Kind.KERNEL
            and (-one.priority, one.sequence) < (-claim.priority, claim.sequence)
            for one in self._holdings.values()
        )

    def is_overtaking(self, id: str, decision: Decision) -> bool:
        """Whether one that starts leaves somebody behind who stands in front of it and asks for the same devices."""
        claim = self._claims[id]
        return any(
            other.device == claim.device
            and (-other.priority, other.sequence) < (-claim.priority, claim.sequence)
            and other.id not in decision.starts
            and other.at_once != 0
            for other in self._claims.values()
        )

    def state(self, without: str | None = None) -> State:
        """Return what the place would know now, if that one did not ask."""
        stocks = [
            Stock(stock.resource, stock.model, stock.capacity, self._free[stock.resource, stock.model])
            for stock in self._first.stocks
        ]
        return replace(
            self._first,
            claims=[claim for claim in self._claims.values() if claim.id != without],
            holdings=list(self._holdings.values()),
            stocks=stocks,
            now_s=self.now_s,
        )

    def carry_out(self, decision: Decision) -> None:
        """Let those start who start, and those begin to end who must yield."""
        for id, count in decision.starts.items():
            self._start(self._claims[id], count, dict(decision.models.get(id, {})))
        for id, reason in decision.reasons.items():
            called = reason.code == "queue.preempting"
            if self._claims[id].called is not called:
                self._claims[id] = replace(self._claims[id], called=called)
        for one in decision.yielding:
            holding = one.holding
            self._holdings[holding.id, holding.rank] = self._with_end(replace(holding, leaving=True))
            if holding.kind is not Kind.KERNEL:
                self._yielded[holding.id, holding.rank] = self._again(holding)

    def move(self, decision: Decision) -> bool:
        """Go on to the next moment at which something ends or time changes the decision; False if there is none."""
        times = [one.ends_by_s for one in self._holdings.values() if one.ends_by_s is not None]
        if decision.look_again_s is not None:
            times.append(decision.look_again_s)
        if not times:
            return False
        self.now_s = max(self.now_s, min(times))
        ended = [key for key, one in self._holdings.items() if one.ends_by_s is not None and one.ends_by_s <= self.now_s]
        for key in ended:
            self._end(key)
        return True

    def _with_end(self, one: Holding) -> Holding:
        """Return one that must yield with the time by which it has ended."""
        if one.grace_s is None:
            return one
        by_s = self.now_s + one.grace_s
        return replace(one, ends_by_s=by_s if one.ends_by_s is None else min(by_s, one.ends_by_s))

    def _start(self, claim: Claim, count: int, models: dict[str, int]) -> None:
        left = claim.replicas - count
        if left <= 0:
            del self._claims[claim.id]
        else:
            at_once = None if claim.at_once is None else claim.at_once - count
            self._claims[claim.id] = replace(claim, replicas=left, at_once=at_once)
        for model, amount in models.items():
            self._free[claim.device or "", model] -= amount
        if claim.together:
            self._hold(claim, count, None, models)
            return
        for _ in range(count):
            share: dict[str, int] = {}
            for model in list(models):
                take = min(models[model], claim.gpus - sum(share.values()))
                if take:
                    share[model] = take
                    models[model] -= take
            self._hold(claim, 1, self._ranks, share)
            self._ranks += 1

    def _hold(self, claim: Claim, count: int, rank: int | None, models: dict[str, int]) -> None:
        stays_s = claim.stays_s
        self._holdings[claim.id, rank] = Holding(
            id=claim.id,
            sequence=claim.sequence,
            queue=claim.queue,
            priority=claim.priority,
            holds={resource: amount * count for resource, amount in claim.each.items()},
            models=models,
            device=claim.device,
            rank=rank,
            grace_s=claim.grace_s,
            since_s=self.now_s,
            max_runtime_s=claim.max_runtime_s,
            ends_by_s=None if stays_s is None else self.now_s + stays_s,
            name=claim.name,
            owner=claim.owner,
        )

    def _end(self, key: tuple[str, int | None]) -> None:
        holding = self._holdings.pop(key)
        for model, amount in _models(holding, self._first.stocks):
            self._free[holding.device or "", model] += amount
        claim = self._claims.get(holding.id)
        if (again := self._yielded.pop(key, None)) is not None:
            self._claims[holding.id] = replace(_joined(again, claim), since_s=self.now_s)
        elif claim is not None and claim.at_once is not None:
            self._claims[holding.id] = replace(claim, at_once=claim.at_once + 1)

    def _again(self, holding: Holding) -> Claim:
        """Return what one that must yield will want; the retries that it has left are counted in its limit."""
        limit = None if holding.ends_by_s is None else max(0.0, holding.ends_by_s - self.now_s)
        claim = Claim(
            id=holding.id,
            sequence=holding.sequence,
            queue=holding.queue,
            priority=holding.priority,
            each=holding.holds,
            device=holding.device,
            together=holding.rank is None,
            since_s=self.now_s,
            max_runtime_s=limit,
            name=holding.name,
            owner=holding.owner,
        )
        return claim if holding.grace_s is None else replace(claim, grace_s=holding.grace_s)


def _joined(again: Claim, waiting: Claim | None) -> Claim:
    """Return what is wanted of a Workload of which a replica comes back while others have not started yet."""
    if waiting is None:
        return again
    limits = again.max_runtime_s, waiting.max_runtime_s
    longest = None if None in limits else max(limit or 0.0 for limit in limits)
    return replace(waiting, replicas=waiting.replicas + again.replicas, max_runtime_s=longest)


def _models(holding: Holding, stocks: Iterable[Stock]) -> list[tuple[str, int]]:
    """Return a holding's devices by model, those of which there are stocks."""
    there = [stock.model for stock in stocks if stock.resource == holding.device]
    if not holding.models and len(set(there)) == 1 and holding.device:
        return [(there[0], holding.holds.get(holding.device, 0))]
    return [(model, amount) for model, amount in holding.models.items() if model in there]
