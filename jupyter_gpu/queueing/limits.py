"""What waiting can't help: more than a queue or a place may ever give."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_gpu.errors import InvalidRequestError, QuotaExceededError
from jupyter_gpu.queueing.quotas import Tree, effective
from jupyter_gpu.queueing.wants import Wants
from jupyter_gpu.queueing.words import amount_of
from jupyter_gpu.schema import CPU, MEMORY, Claim, QueueSet, Stock


def check_quota(claim: Claim, queues: QueueSet, stocks: Sequence[Stock], place: str) -> None:
    """Refuse a claim that could never start: of a gang all replicas count, of what starts as it fits one.

    Args:
        claim: what is asked for.
        queues: as they are set; none at all is one queue with all devices.
        stocks: all devices of the place.
        place: how it is called for people.

    Raises:
        InvalidRequestError: there is no such queue; the message names those there are.
        QuotaExceededError: more than the place's devices of that kind, or than the queue's own and what it may borrow.
    """
    tree = Tree(effective(queues, stocks))
    if claim.queue not in tree.queues:
        names = ", ".join(sorted(tree.queues)) or "none"
        raise InvalidRequestError(f"{place} has no queue {claim.queue!r}; there are: {names}")
    want = Wants(tree, stocks, (claim,)).of(claim)
    if want.device is not None:
        pools = set(want.pools)
        capacity = sum(stock.capacity for stock in stocks if (stock.resource, stock.model) in pools)
        if want.gpus > capacity:
            kind = f"{want.device} ({want.product})" if want.product else want.device
            raise QuotaExceededError(place, kind, asked=want.gpus, limit=capacity, advice=_others(want.device, stocks))
    queue = f"queue {want.queue}"
    if want.device is not None and not want.covered:
        named = ", ".join(sorted(name for name in tree.specs[want.node].quotas if name not in (CPU, MEMORY)))
        raise QuotaExceededError(queue, want.device, asked=want.gpus, limit=0, advice=f"it has {named}" if named else "")
    for share, amount in want.demand:
        most, nominal = max(0, tree.most(share, want.node)), share.subtree[want.node]
        if amount > most:
            scale = 1000 if share.resource == CPU else 1
            advice = f"{amount_of(share.resource, nominal)} of its own, the rest borrowed" if most > nominal else ""
            raise QuotaExceededError(queue, share.resource, asked=amount / scale, limit=most / scale, advice=advice)


def _others(device: str, stocks: Sequence[Stock]) -> str:
    there = sorted({(stock.resource, stock.model, stock.capacity) for stock in stocks if stock.capacity})
    shown = ", ".join(f"{count} {resource}" + (f" ({model})" if model else "") for resource, model, count in there)
    return f"ask for what is there: {shown}" if shown else ""
