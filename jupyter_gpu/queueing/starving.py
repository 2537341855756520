"""Who has waited too long: what is free and becomes free is kept for it.

Smaller work overtakes what does not fit, so that nothing lies idle. After ``starve_after_s`` the first in line is *starving*.
Then those behind it start only with what it does not need, or if they would be through by the time at which it would start, both
by ``max_runtime_s``. Where those who hold something have none there is no such time, and nobody overtakes.

That time never becomes later by one that overtakes: it is counted from when those who hold something were admitted, and leaves
out what they may take beside, to start and to end. Else short work could overtake for ever, each let in by the one before it.

Two are not held back by it: who stands in front of it by priority and sequence; and, by one that must borrow, another queue's
work within its own quota, for that would be lent only until its owner wants it back.

Source: EASY backfilling; D. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; A. Mu'alem and D. Feitelson, IEEE TPDS
12(6), 2001. Simpler than there: what overtakes must end before; it is not let in for what would be left over then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jupyter_gpu.queueing.room import Floors, Held, Room
from jupyter_gpu.queueing.wants import Pool, Want
from jupyter_gpu.schema import Claim


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What a start of this decision takes, or what is coming for one that waits."""

    claim: Claim
    want: Want
    pools: dict[Pool, int]
    starts: bool
    """Now; else it is about to."""


@dataclass(frozen=True, slots=True, eq=False)
class Starving:
    """One for which something is kept."""

    claim: Claim
    want: Want
    borrows: bool
    starts_by_s: float | None
    """When it starts if those who hold what it needs use up their ``max_runtime_s``; None if they have none."""

    def holds_back(self, claim: Claim, want: Want, borrows: bool, now_s: float) -> bool:
        """Whether another one must leave to it what it needs."""
        if (-claim.priority, claim.sequence) < (-self.claim.priority, self.claim.sequence):
            return False
        if self.borrows and not borrows and want.node != self.want.node:
            return False
        return self.starts_by_s is None or now_s + runtime_s(claim) > self.starts_by_s


@dataclass(slots=True)
class Patience:
    """All who starve, in the order in which they were found."""

    starving: list[Starving] = field(default_factory=list)

    def floors(self, room: Room, claim: Claim, want: Want, now_s: float) -> Floors:
        """Return what one that may start must leave to those who hold it back."""
        borrows = room.usage.borrows(want.node, want.demand) > 0
        floors = Floors()
        for one in self.starving:
            if not one.holds_back(claim, want, borrows, now_s):
                continue
            if one.want.gpus and not set(one.want.pools).isdisjoint(want.pools):
                floors.devices.append((frozenset(one.want.pools), min(room.devices(one.want.pools), one.want.gpus)))
            shares = {share for share, _ in want.demand}
            for share, amount in one.want.demand:
                if share in shares:
                    floors.quota.append((one.want.node, share, min(room.usage.available(share, one.want.node), amount)))
        return floors


def starve(room: Room, claim: Claim, want: Want, held: Iterable[Held], taken: Sequence[Taken], now_s: float) -> Starving | None:
    """Return what is to be kept for one that has waited too long; None if it would not fit even with all others gone.

    Args:
        room: what is free, and will be when those have ended who are leaving.
        claim: who has waited.
        want: what it asks for.
        held: what will be given back.
        taken: what starts in this decision, or is about to.
        now_s: the time.
    """
    if not want.covered:
        return None
    later = room.copy()
    ends: list[tuple[float, Held | Taken]] = [(through_s(one), one) for one in held]
    ends += [(now_s + runtime_s(one.claim), one) for one in taken]
    ends.sort(key=lambda end: end[0])
    for end_s, leaver in ends:
        if isinstance(leaver, Held):
            later.give(leaver)
        else:
            later.change(leaver.want, leaver.pools, -1)
        if later.fits(want):
            borrows = room.usage.borrows(want.node, want.demand) > 0
            return Starving(claim, want, borrows, None if end_s == math.inf else max(now_s, end_s))
    return None


def runtime_s(claim: Claim) -> float:
    """Return how long a claim may run; infinite if nothing limits it."""
    return math.inf if claim.max_runtime_s is None else claim.max_runtime_s


def through_s(held: Held) -> float:
    """Return when a holding has used up its limit; infinite if it has none."""
    one = held.holding
    if one.max_runtime_s is not None:
        return one.since_s + one.max_runtime_s
    return math.inf if one.ends_by_s is None else one.ends_by_s
