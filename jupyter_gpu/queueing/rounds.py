"""One go through all queues, in rounds: who can go, in which order, and what that leaves for the others.

In each round every queue names its first that can go (priority, then sequence); those who need not borrow go first, then the
higher priority, then who came first. One that does not fit blocks nobody behind it until it is starving.

Three things can happen to one that goes: it *starts* with what is free now; it *waits for what is coming*, where all it needs is
there as soon as those have ended who are leaving; it *calls* on others to yield. What is coming for one is kept for it.

Source: Kueue v0.17, the order of a scheduling cycle (https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/#queueing-strategy).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from jupyter_gpu.queueing.decisions import State
from jupyter_gpu.queueing.preempting import Preemptor, Victim
from jupyter_gpu.queueing.quotas import Tree, effective
from jupyter_gpu.queueing.room import NO_FLOORS, Floors, Held, Room
from jupyter_gpu.queueing.starving import Patience, Starving, Taken, runtime_s, starve
from jupyter_gpu.queueing.wants import Pool, Want, Wants
from jupyter_gpu.schema import Claim

Key = tuple[str, int | None]
"""A holding: id and rank."""

Calls = dict[Key, tuple[Claim, Victim]]
"""Who is told to yield, and to whom."""


class Facts:
    """What all passes of a decision have in common."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.now_s = state.now_s
        self.queues = effective(state.queues, state.stocks)
        self.tree = Tree(self.queues)
        self.wants = Wants(self.tree, state.stocks, state.claims)
        self.held = [Held.of(one, self.tree, self.wants) for one in state.holdings]
        self.runs = {one.id for one in state.holdings}
        self.lines: dict[str, list[tuple[Claim, Want]]] = {}
        self.gone: list[Claim] = []
        of, queues = self.wants.of, self.tree.queues
        for claim in sorted(state.claims, key=lambda claim: (not claim.called, -claim.priority, claim.sequence, claim.id)):
            if claim.at_once == 0 and not claim.together:
                continue
            if claim.queue in queues:
                self.lines.setdefault(claim.queue, []).append((claim, of(claim)))
            else:
                self.gone.append(claim)


@dataclass(slots=True)
class _Head:
    """The first of a queue that can go, and how."""

    claim: Claim
    want: Want
    borrows: int
    pools: dict[Pool, int]
    starts: bool
    victims: list[Victim] = field(default_factory=list)


class _Line:
    """A queue in a pass: who has not been asked yet."""

    __slots__ = ("left", "members", "next")

    def __init__(self, members: list[tuple[Claim, Want]]) -> None:
        self.members = members
        self.next = 0
        self.left: int | None = None
        """How many starts the next one may still have."""


class Pass:
    """One go through all queues."""

    def __init__(self, facts: Facts, called: Calls, barred: set[str], served: Collection[str] = ()) -> None:
        self.facts, self.barred = facts, barred
        self.callers = {claim.id for claim, _ in called.values()}
        """Those for whom others are told to yield: nobody holds them back."""
        self.served = served
        """Who got something in the pass before, when it called: in its queue it goes before those who got nothing."""
        self.lines = [self._in_order(members) for members in facts.lines.values()]
        self.tree, self.now_s = facts.tree, facts.now_s
        facts.wants.forget()
        self.now = Room.of(facts.tree, facts.state.stocks, facts.held)
        staying: list[Held] = []
        leaving: list[Held] = []
        for one in facts.held:
            holding = one.holding
            (leaving if holding.leaving or (holding.id, holding.rank) in called else staying).append(one)
        self.staying = staying
        self.soon = self.now
        """What is free once those have ended who are leaving, and those have started who wait for it."""
        if leaving:
            self.soon = self.now.copy()
            for one in leaving:
                self.soon.give(one)
        self.may_yield: dict[int, list[Held]] = {}
        for one in staying:
            if one.holding.preemptible and one.node >= 0:
                self.may_yield.setdefault(one.node, []).append(one)
        self.leaving = leaving
        self.patience = Patience()
        self.changes = 0
        self.started: Counter[str] = Counter()
        self.got: Counter[str] = Counter()
        """Starts, and those that are coming, by id."""
        self.taken: list[Taken] = []
        self.coming: dict[str, tuple[Claim, Want]] = {}
        self.waiting: list[tuple[Claim, Want]] = []
        self.calls: Calls = {}

    def run(self) -> None:
        """Go in rounds until nobody is left that can go."""
        lines = [_Line(members) for members in self.lines]
        while lines:
            changes = self.changes
            heads = [(line, head) for line in lines if (head := self._first(line)) is not None]
            heads.sort(key=lambda one: (one[1].borrows, -one[1].claim.priority, one[1].claim.sequence, one[1].claim.id))
            done = 0
            for line, head in heads:
                if self.changes != changes:  # it was found before something else changed
                    again = self._plan(head.claim, head.want)
                    if again is None or again.borrows > head.borrows or (done and not again.starts):
                        continue  # its queue will name its first anew
                    head = again
                self._go(head)
                line.left = (line.left or 1) - 1
                if not line.left:
                    self._leave(line)
                done += 1
            lines = [line for line, _ in heads]

    def _in_order(self, members: list[tuple[Claim, Want]]) -> list[tuple[Claim, Want]]:
        if not self.served:
            return members
        return sorted(members, key=lambda one: (not one[0].called, one[0].id not in self.served))

    def _has_called(self, claim: Claim) -> bool:
        return claim.called or claim.id in self.callers

    def _floors(self, claim: Claim, want: Want) -> Floors:
        if not self.patience.starving or self._has_called(claim):
            return NO_FLOORS
        return self.patience.floors(self.soon, claim, want, self.now_s)

    def _first(self, line: _Line) -> _Head | None:
        members, waiting = line.members, self.waiting
        while line.next < len(members):
            claim, want = members[line.next]
            if not want.exhausted and not self._is_kept_out(claim, want):
                if line.left is None:
                    line.left = 1 if claim.together else min(claim.replicas, claim.at_once or claim.replicas)
                if (head := self._plan(claim, want)) is not None:
                    return head
                if self._has_called(claim):
                    pass  # those behind it may be of higher priority
                elif self.patience.starving:
                    want.exhausted_runtime_s = runtime_s(claim)
                else:
                    want.exhausted = True
            waiting.append(members[line.next])
            self._wait(claim, want)
            line.next += 1
            line.left = None
        return None

    def _is_kept_out(self, claim: Claim, want: Want) -> bool:
        limit = want.exhausted_runtime_s
        return limit is not None and runtime_s(claim) >= limit

    def _leave(self, line: _Line) -> None:
        claim, want = line.members[line.next]
        if claim.id in self.coming:
            self.waiting.append((claim, want))
        line.next += 1
        line.left = None

    def _plan(self, claim: Claim, want: Want) -> _Head | None:
        soon, now = self.soon, self.now
        floors = self._floors(claim, want)
        other = None if now is soon else now
        if (chosen := soon.choose(want, floors, other)) is not None:
            return _Head(claim, want, soon.usage.borrows(want.node, want.demand), chosen, True)
        if other is not None and (chosen := soon.choose(want, floors)) is not None:
            return _Head(claim, want, soon.usage.borrows(want.node, want.demand), chosen, False)
        if not want.covered or claim.id in self.barred or not self.may_yield:
            return None
        preemptor = Preemptor(soon, now, claim, want, floors)
        if not (victims := preemptor.victims(self.may_yield)):
            return None
        for victim in victims:
            soon.give(victim.held)
        borrows = soon.usage.borrows(want.node, want.demand)
        for victim in victims:
            soon.give(victim.held, -1)
        return _Head(claim, want, borrows, {}, False, victims)

    def _go(self, head: _Head) -> None:
        claim, want = head.claim, head.want
        if head.victims:
            self._call(head)
        self.changes += 1
        self.got[claim.id] += 1
        self.soon.change(want, head.pools, 1)
        if head.starts:
            if self.now is not self.soon:
                self.now.change(want, head.pools, 1)
            self.started[claim.id] += 1
        else:
            self.coming[claim.id] = (claim, want)
        self.taken.append(Taken(claim, want, head.pools, head.starts))

    def _call(self, head: _Head) -> None:
        floors = self._floors(head.claim, head.want)
        if self.soon is self.now:
            self.soon = self.now.copy()
        for victim in head.victims:
            holding = victim.held.holding
            self.calls[holding.id, holding.rank] = (head.claim, victim)
            self.soon.give(victim.held)
            self.may_yield[victim.held.node].remove(victim.held)
            self.staying.remove(victim.held)
        head.pools = self.soon.choose(head.want, floors) or {}

    def _wait(self, claim: Claim, want: Want) -> None:
        """Note one that does not start: it may be the one that starves."""
        line = want.line
        if line.has_starving:
            return
        if self.now_s - claim.since_s < self.facts.queues.starve_after_s:
            if line.oldest_s is None or claim.since_s < line.oldest_s:
                line.oldest_s = claim.since_s
            return
        one = starve(self.soon, claim, want, self.staying, self.taken, self.now_s)
        if one is not None:
            line.has_starving = True
            self.patience.starving.append(one)
            self.changes += 1

    def starving(self) -> dict[str, Starving]:
        """Return for whom something is kept, by id."""
        return {one.claim.id: one for one in self.patience.starving}
