"""What is free at a time, or will be: quota and devices together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jupyter_gpu.queueing.quotas import Share, Tree, Usage
from jupyter_gpu.queueing.wants import Pool, Want, Wants, held_pools
from jupyter_gpu.schema import Holding, Stock


@dataclass(frozen=True, slots=True)
class Held:
    """A holding, in terms of the tree and the pools."""

    holding: Holding
    node: int
    demand: tuple[tuple[Share, int], ...]
    pools: Mapping[Pool, int]

    @classmethod
    def of(cls, holding: Holding, tree: Tree, wants: Wants) -> Held:
        """Translate a holding. One of a queue that is gone holds devices, and no quota."""
        node = tree.queues.get(holding.queue, -1)
        gpus = holding.holds.get(holding.device, 0) if holding.device else 0
        pools = held_pools(holding.device, holding.models, gpus, wants.models(holding.device or ""))
        return cls(holding, node, tree.demand(node, holding.holds) if node >= 0 else (), pools)


@dataclass(slots=True)
class Floors:
    """What must be left for others: so many devices of some pools, so much quota of a queue."""

    devices: list[tuple[frozenset[Pool], int]] = field(default_factory=list)
    quota: list[tuple[int, Share, int]] = field(default_factory=list)


NO_FLOORS = Floors()


class Room:
    """What is free; it can be taken, given, and copied."""

    __slots__ = ("free", "usage")

    def __init__(self, usage: Usage, free: dict[Pool, int]) -> None:
        self.usage = usage
        self.free = free

    @classmethod
    def of(cls, tree: Tree, stocks: Iterable[Stock], held: Iterable[Held]) -> Room:
        """Return what is free by the stocks, and by what is held of the quotas."""
        room = cls(Usage(tree), {})
        for stock in stocks:
            pool = (stock.resource, stock.model)
            room.free[pool] = room.free.get(pool, 0) + stock.free
        for one in held:
            for share, amount in one.demand:
                room.usage.change(share, one.node, amount)
        return room

    def copy(self) -> Room:
        """Return one that can be changed for itself."""
        return Room(self.usage.copy(), self.free.copy())

    def devices(self, pools: Iterable[Pool]) -> int:
        """Return how many devices of some pools are free."""
        free = self.free
        return sum(free.get(pool, 0) for pool in pools)

    def has_devices(self, want: Want) -> bool:
        """Whether there are devices enough."""
        return not want.gpus or self.devices(want.pools) >= want.gpus

    def short_of(self, want: Want) -> dict[Share, int]:
        """Return by how much each quota falls short of what is asked; those that suffice are left out."""
        left = {share: max(0, self.usage.available(share, want.node)) for share, _ in want.demand}
        return {share: amount - left[share] for share, amount in want.demand if amount > left[share]}

    def fits(self, want: Want) -> bool:
        """Whether it could start with what is free, if nothing had to be left for others."""
        return want.covered and self.has_devices(want) and self.usage.has(want.node, want.demand)

    def choose(self, want: Want, floors: Floors = NO_FLOORS, other: Room | None = None) -> dict[Pool, int] | None:
        """Return the devices to take, so that the floors are kept; None if it does not fit.

        Args:
            want: what shall start.
            floors: what must be left for others.
            other: a second room, in which it must fit as well.
        """
        if not self.fits(want) or (other is not None and not other.fits(want)):
            return None
        chosen: dict[Pool, int] = {}
        missing = want.gpus
        spare = [(pools, self.devices(pools) - floor) for pools, floor in floors.devices]
        for pool in want.pools:
            if not missing:
                break
            take = min(missing, self.free.get(pool, 0))
            if other is not None:
                take = min(take, other.free.get(pool, 0))
            take = min([take, *(left for pools, left in spare if pool in pools)])
            if take > 0:
                chosen[pool] = take
                missing -= take
                spare = [(pools, left - take if pool in pools else left) for pools, left in spare]
        if missing or (floors.quota and not self._keeps(floors, want)):
            return None
        return chosen

    def _keeps(self, floors: Floors, want: Want) -> bool:
        self.change(want, {}, 1)
        kept = all(self.usage.available(share, node) >= floor for node, share, floor in floors.quota)
        self.change(want, {}, -1)
        return kept

    def change(self, want: Want, chosen: Mapping[Pool, int], sign: int) -> None:
        """Take (1) or give back (-1) what one start takes, with those devices."""
        for share, amount in want.demand:
            self.usage.change(share, want.node, sign * amount)
        for pool, amount in chosen.items():
            self.free[pool] = self.free.get(pool, 0) - sign * amount

    def give(self, held: Held, sign: int = 1) -> None:
        """Free (1) or take again (-1) what a holding holds."""
        for share, amount in held.demand:
            self.usage.change(share, held.node, -sign * amount)
        for pool, amount in held.pools.items():
            self.free[pool] = self.free.get(pool, 0) + sign * amount
