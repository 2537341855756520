"""Who must yield: candidates by the rules of the preemptor's queue, in order, until it fits; then those not needed are spared.

Source: Kueue v0.17, classical preemption (https://kueue.sigs.k8s.io/docs/concepts/preemption/#classic-preemption); the same rules
and the same order. What is ours: the devices must become free as well, of the right resource and model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from jupyter_gpu.queueing.quotas import Share
from jupyter_gpu.queueing.room import Floors, Held, Room
from jupyter_gpu.queueing.wants import Want
from jupyter_gpu.schema import Borrowing, Claim, Preemption, WithinCohort, WithinQueue


class Rule(Enum):
    """Why one must yield; the value is the fact ``rule`` of `end.preempted`."""

    IN_QUEUE = "in_queue"
    RECLAIM = "reclaim"
    BORROWING = "borrowing"


@dataclass(frozen=True, slots=True)
class Victim:
    """One that must yield."""

    held: Held
    rule: Rule


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    held: Held
    rule: Rule
    top: int
    """The cohort that both queues are in, the lowest one; -1 in the same queue."""
    only_without_borrowing: bool = False


class Preemptor:
    """A claim that does not fit, and what stands in its way."""

    def __init__(self, room: Room, now: Room, claim: Claim, want: Want, floors: Floors) -> None:
        """Look at one that does not fit.

        Args:
            room: what is free, and will be when those have ended who are leaving, less what is meant for others then.
            now: what is free now; only who borrows now must give back.
            claim: what does not fit.
            want: the same, in terms of the tree.
            floors: what must be left for others.
        """
        self.room, self.now, self.claim, self.want, self.floors = room, now, claim, want, floors
        self.tree = room.usage.tree
        self.policy: Preemption = self.tree.specs[want.node].preemption
        self.short = list(room.short_of(want))
        """The quotas that don't suffice."""
        self.lacks_devices = not room.has_devices(want)
        contested = list(self.short)
        if self.lacks_devices and (share := self.tree.shares.get(want.device or "")) is not None and share not in contested:
            contested.append(share)
        self.contested = contested

    def victims(self, held: Mapping[int, Sequence[Held]]) -> list[Victim] | None:
        """Return who must yield so that it fits; None if nobody may, or it would not be enough.

        Args:
            held: by the queue's node, what may be taken from at all: preemptible, and not leaving yet.
        """
        if not self.contested or not self._may():
            return None
        own = self._own(held)
        hierarchical, by_priority = self._of_others(held)
        candidates = [*hierarchical, *by_priority, *own]
        forbidden = self.policy.borrow_within_cohort is Borrowing.NEVER
        if not (hierarchical or by_priority) or (forbidden and not self._under_nominal()):
            attempts = [True]
        elif forbidden and not hierarchical:
            attempts = [False, True]
        else:
            attempts = [True, False]
        for borrowing in attempts:
            if found := self._attempt(candidates, borrowing):
                return found
        return None

    def _may(self) -> bool:
        """Whether the queue may preempt for so much at all: Kueue asks this of each quota that does not suffice."""
        if self.policy.borrow_within_cohort is not Borrowing.NEVER:
            return True
        node, usage, demand = self.want.node, self.room.usage, dict(self.want.demand)
        return all(demand[share] <= share.subtree[node] or usage.reach(share, node, demand[share])[1] for share in self.contested)

    def _under_nominal(self) -> bool:
        return all(self.room.usage.used(share, self.want.node) < share.subtree[self.want.node] for share in self.contested)

    def _own(self, held: Mapping[int, Sequence[Held]]) -> list[_Candidate]:
        policy, claim = self.policy.within_queue, self.claim

        def yields(one: Held) -> bool:
            other = one.holding
            newer = policy is WithinQueue.LOWER_OR_NEWER_EQUAL_PRIORITY and other.priority == claim.priority
            return other.priority < claim.priority or (newer and other.sequence > claim.sequence)

        if policy is WithinQueue.NEVER:
            return []
        return [_Candidate(one, Rule.IN_QUEUE, -1) for one in self._useful(held.get(self.want.node, ()), yields)]

    def _of_others(self, held: Mapping[int, Sequence[Held]]) -> tuple[list[_Candidate], list[_Candidate]]:
        """Return those that must yield because the preemptor is nearer to what they use, and those by priority."""
        hierarchical: list[Held] = []
        tops: dict[int, int] = {}
        by_priority: list[Held] = []
        policy, claim, node = self.policy.reclaim_within_cohort, self.claim, self.want.node
        if policy is WithinCohort.NEVER or self.tree.parent[node] < 0:
            return [], []

        def yields(one: Held) -> bool:
            return policy is WithinCohort.ANY or one.holding.priority < claim.priority

        nearer, rest = self._step(node, dict(self.want.demand))
        below = node
        for top in self.tree.path(node):
            for queue in self._borrowers(top, below):
                tops[queue] = top
                (hierarchical if nearer else by_priority).extend(self._useful(held.get(queue, ()), yields))
            fits, rest = self._step(top, rest)
            nearer, below = nearer or fits, top
        return (
            [_Candidate(one, Rule.RECLAIM, tops[one.node]) for one in _in_order(hierarchical)],
            [self._by_priority(one, tops[one.node]) for one in _in_order(by_priority)],
        )

    def _by_priority(self, one: Held, top: int) -> _Candidate:
        limit, priority = self.policy.max_priority_threshold, one.holding.priority
        if (
            self.policy.borrow_within_cohort is Borrowing.NEVER
            or priority >= self.claim.priority
            or (limit is not None and priority > limit)
        ):
            return _Candidate(one, Rule.RECLAIM, top, only_without_borrowing=True)
        return _Candidate(one, Rule.BORROWING, top)

    def _step(self, node: int, demand: Mapping[Share, int]) -> tuple[bool, dict[Share, int]]:
        """Return whether so much fits into what is a node's own, and what is left to ask of its cohort."""
        usage = self.room.usage
        fits = not any(usage.exceeds(share, node, amount) for share, amount in demand.items())
        rest = {share: max(0, amount - max(0, share.local[node] - usage.used(share, node))) for share, amount in demand.items()}
        return fits, rest

    def _borrowers(self, top: int, below: int) -> Iterable[int]:
        """Yield the queues under a cohort that hold more than their own, by cohorts that do; but for a subtree that was seen."""
        for member in self.tree.members[top]:
            if member == below or not self._exceeds(member):
                continue
            if self.tree.members[member] or member >= len(self.tree.specs):
                yield from self._borrowers(member, below)
            else:
                yield member

    def _exceeds(self, node: int) -> bool:
        here, now = self.room.usage, self.now.usage
        return any(here.exceeds(share, node) and now.exceeds(share, node) for share in self.contested)

    def _useful(self, held: Iterable[Held], yields: Callable[[Held], bool]) -> list[Held]:
        """Return those that may be told to yield, and hold something of what is short, in order."""
        pools = frozenset(self.want.pools) if self.lacks_devices else frozenset()
        return _in_order(
            one
            for one in held
            if yields(one)
            and one.holding.id != self.claim.id
            and (any(amount and share in self.short for share, amount in one.demand) or not pools.isdisjoint(one.pools))
        )

    def _is_due(self, candidate: _Candidate, borrowing: bool) -> bool:
        """Whether it may still be taken: as long as its queue, and the cohorts up to the common one, hold more than their own."""
        if candidate.top < 0:
            return True
        if borrowing and candidate.only_without_borrowing:
            return False
        here = candidate.held.node
        while here != candidate.top:
            if not self._exceeds(here):
                return False
            here = self.tree.parent[here]
        return True

    def _attempt(self, candidates: Sequence[_Candidate], borrowing: bool) -> list[Victim] | None:
        taken: list[_Candidate] = []
        found = False
        for candidate in candidates:
            if not self._is_due(candidate, borrowing):
                continue
            self.room.give(candidate.held)
            taken.append(candidate)
            if self._fits(borrowing):
                found = True
                break
        if found:
            self._spare(taken, borrowing)
        for candidate in taken:
            self.room.give(candidate.held, -1)
        return [Victim(one.held, one.rule) for one in taken] if found else None

    def _spare(self, taken: list[_Candidate], borrowing: bool) -> None:
        """Give back those that it fits without, the last one taken but for one in front."""
        for candidate in list(reversed(taken[:-1])):
            self.room.give(candidate.held, -1)
            if self._fits(borrowing):
                taken.remove(candidate)
            else:
                self.room.give(candidate.held)

    def _fits(self, borrowing: bool) -> bool:
        usage, want = self.room.usage, self.want
        if not borrowing and any(usage.exceeds(share, want.node, amount) for share, amount in want.demand):
            return False
        return self.room.choose(want, self.floors) is not None


def _in_order(held: Iterable[Held]) -> list[Held]:
    """Lowest priority first, of those the newest admitted."""
    return sorted(
        held,
        key=lambda one: (
            one.holding.priority,
            -one.holding.since_s,
            -one.holding.sequence,
            -(one.holding.rank or 0),
            one.holding.id,
        ),
    )
