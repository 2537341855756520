"""What a claim asks for at a time: the same object for equal claims, so that one answer does for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from jupyter_gpu.queueing.quotas import Share, Tree
from jupyter_gpu.schema import Claim, Stock, fits_product

Pool = tuple[str, str]
"""Devices that are all alike: resource name and model."""


class Line:
    """Those of a queue who ask for the same devices: the first of them to wait for long is starving."""

    __slots__ = ("has_starving", "oldest_s")

    def __init__(self) -> None:
        self.has_starving = False
        self.oldest_s: float | None = None
        """Since when the one has waited that waits longest, of those who don't starve yet."""


class Want:
    """What one start takes: of a gang all its replicas, of what starts as it fits one replica."""

    __slots__ = (
        "covered",
        "demand",
        "device",
        "exhausted",
        "exhausted_runtime_s",
        "gpus",
        "line",
        "node",
        "pools",
        "product",
        "queue",
    )

    def __init__(self, claim: Claim, tree: Tree, pools: tuple[Pool, ...], line: Line) -> None:
        at_once = claim.replicas if claim.together else 1
        self.queue = claim.queue
        self.node = tree.queues.get(claim.queue, -1)
        self.device = claim.device if claim.gpus else None
        self.product = claim.product
        self.line = line
        self.gpus = claim.gpus_at_once
        self.pools = pools
        """Where its devices may come from, those to take first in front."""
        amounts = {resource: amount * at_once for resource, amount in claim.each.items()}
        self.demand: tuple[tuple[Share, int], ...] = tree.demand(self.node, amounts) if self.node >= 0 else ()
        self.covered = self.node >= 0 and (self.device is None or tree.covers(self.node, self.device))
        self.exhausted = False
        """Whether it was found in this pass that such a one can't start, so that the next need not try."""
        self.exhausted_runtime_s: float | None = None
        """It can't start where it runs for so long or longer, for what is free is kept for others."""


class Wants:
    """All wants of a decision."""

    def __init__(self, tree: Tree, stocks: Iterable[Stock], claims: Iterable[Claim]) -> None:
        self._tree = tree
        asked = {(claim.device, claim.product) for claim in claims if claim.product is not None}
        capacity: Counter[Pool] = Counter()
        for stock in stocks:
            capacity[stock.resource, stock.model] += stock.capacity
        wanted = {
            (resource, model): sum(device == resource and fits_product(product, model) for device, product in asked)
            for resource, model in capacity
        }
        self._models: dict[str, list[str]] = {}
        for resource, model in sorted(capacity, key=lambda pool: (wanted[pool], -capacity[pool], pool)):
            self._models.setdefault(resource, []).append(model)
        self._known: dict[tuple[object, ...], Want] = {}
        self._near: dict[tuple[object, ...], Want] = {}
        self._pools: dict[tuple[str, str | None], tuple[Pool, ...]] = {}
        self._lines: dict[tuple[str, str | None, str | None], Line] = {}

    def of(self, claim: Claim) -> Want:
        """Return what a claim wants."""
        at_once = claim.together and claim.replicas
        near = (claim.queue, claim.device, claim.product, at_once, id(claim.each))  # places share what is equal: no need to look
        want = self._near.get(near)
        if want is None:
            want = self._near[near] = self._equal(claim, (*near[:4], *claim.each.items()))
        return want

    def _equal(self, claim: Claim, key: tuple[object, ...]) -> Want:
        if key not in self._known:
            line = self._lines.setdefault((claim.queue, claim.device, claim.product), Line())
            self._known[key] = Want(claim, self._tree, self.pools(claim.device, claim.product), line)
        return self._known[key]

    def pools(self, device: str | None, product: str | None) -> tuple[Pool, ...]:
        """Return the pools whose devices will do.

        In front are those that the fewest products in waiting claims ask for; of these the one with the most devices, so that
        what there is little of is left for those who will ask for it by name.
        """
        if device is None:
            return ()
        key = (device, product)
        if key not in self._pools:
            models = self._models.get(device, ())
            self._pools[key] = tuple((device, model) for model in models if fits_product(product, model))
        return self._pools[key]

    def models(self, resource: str) -> Sequence[str]:
        """Return the models there are of a resource, those to take first in front."""
        return self._models.get(resource, ())

    def forget(self) -> None:
        """Begin a new pass."""
        for want in self._known.values():
            want.exhausted, want.exhausted_runtime_s = False, None
        for line in self._lines.values():
            line.has_starving, line.oldest_s = False, None


def held_pools(device: str | None, models: Mapping[str, int], gpus: int, known: Sequence[str]) -> dict[Pool, int]:
    """Return where the devices of a holding come from; where it does not say, and there are several models, nobody knows."""
    if device is None or not gpus:
        return {}
    if models:
        return {(device, model): amount for model, amount in models.items()}
    return {(device, known[0] if len(known) == 1 else ""): gpus}
