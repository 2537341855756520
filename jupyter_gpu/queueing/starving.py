"""Who has waited too long: what is free and becomes free is kept for it.

Smaller work overtakes what does not fit, so that nothing lies idle. After ``starve_after_s`` the first in line is *starving*.
Then those behind it start only with what it does not need, or if by their ``max_runtime_s`` they must have ended when by the
limits of those who hold something it starts at the latest. Where those have no limits there is no such time, and nobody
overtakes.

Two are not held back by it: who stands in front of it by priority and sequence; and, by one that must borrow, another queue's
work within its own quota, for that would be lent only until its owner wants it back.

Source: EASY backfilling; D. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995; A. Mu'alem and D. Feitelson, IEEE TPDS
12(6), 2001. Simpler than there: what overtakes must end before; it is not let in for what would be left over then.
"""

from __future__ import annotations

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
    ends_by_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Starving:
    """One for which something is kept."""

    claim: Claim
    want: Want
    borrows: bool
    starts_by_s: float | None
    """When it starts at the latest, by the limits of those who hold what it needs; None if they have none."""

    def holds_back(self, claim: Claim, want: Want, borrows: bool, now_s: float) -> bool:
        """Whether another one must leave to it what it needs."""
        if (-claim.priority, claim.sequence) < (-self.claim.priority, self.claim.sequence):
            return False
        if self.borrows and not borrows and want.node != self.want.node:
            return False
        runtime = claim.max_runtime_s
        return self.starts_by_s is None or runtime is None or now_s + runtime > self.starts_by_s


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
        held: what will be given back, those that must end first in front and those without a limit last.
        taken: what starts in this decision, or is about to.
        now_s: the time.
    """
    if not want.covered:
        return None
    later = room.copy()
    ends: list[tuple[float, Held | Taken]] = []
    for one in held:
        limit = one.holding.ends_by_s
        ends.append((float("inf") if limit is None else limit, one))
    ends += [(float("inf") if one.ends_by_s is None else one.ends_by_s, one) for one in taken]
    ends.sort(key=lambda end: end[0])
    for ends_by_s, leaver in ends:
        if isinstance(leaver, Held):
            later.give(leaver)
        else:
            later.change(leaver.want, leaver.pools, -1)
        if later.fits(want):
            borrows = room.usage.borrows(want.node, want.demand) > 0
            return Starving(claim, want, borrows, None if ends_by_s == float("inf") else max(now_s, ends_by_s))
    return None
