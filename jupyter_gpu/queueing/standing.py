"""How queues stand: what each holds, borrows and lets wait."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from jupyter_gpu.queueing.decisions import State
from jupyter_gpu.queueing.quotas import Tree, effective
from jupyter_gpu.schema import CPU, QueueStatus


def queue_statuses(state: State, mine: Collection[str] | None = None) -> tuple[QueueStatus, ...]:
    """Return how each queue stands: those of the set in its order, then those that only Workloads name.

    Args:
        state: all that a place knows.
        mine: ids of the Workloads that may be shown; None is all. The numbers always count all.
    """
    tree = Tree(effective(state.queues, state.stocks))
    named = {claim.queue for claim in state.claims} | {holding.queue for holding in state.holdings}
    return tuple(_status(name, tree, state, mine) for name in [*tree.queues, *sorted(named - tree.queues.keys())])


def _status(name: str, tree: Tree, state: State, mine: Collection[str] | None) -> QueueStatus:
    node = tree.queues.get(name, -1)
    spec = tree.specs[node] if node >= 0 else None
    held = sorted(
        (one for one in state.holdings if one.queue == name), key=lambda one: (one.since_s, one.sequence, one.rank or 0)
    )
    waits = sorted(
        (one for one in state.claims if one.queue == name), key=lambda one: (not one.called, -one.priority, one.sequence)
    )
    counted = {share.resource for share in tree.shares.values() if node >= 0 and share.named[node]}
    used = dict.fromkeys(sorted(counted), 0)
    for one in held:
        relevant = {share.resource for share, _ in tree.demand(node, one.holds)} if node >= 0 else set()
        for resource, amount in one.holds.items():
            if resource in relevant or resource == one.device:
                used[resource] = used.get(resource, 0) + amount
    above = {
        resource: amount - tree.shares[resource].subtree[node]
        for resource, amount in used.items()
        if node >= 0 and resource in tree.shares and amount > tree.shares[resource].subtree[node]
    }
    running = {one.id for one in state.holdings}
    return QueueStatus(
        name=name,
        cohort=spec.cohort if spec else None,
        quotas=spec.quotas if spec else {},
        used=dict(_in_quota_units(used)),
        borrowed=dict(_in_quota_units(above)),
        holders=tuple(dict.fromkeys(one.id for one in held if one.device and (mine is None or one.id in mine))),
        waiters=tuple(one.id for one in waits if one.id not in running and (mine is None or one.id in mine)),
    )


def _in_quota_units(amounts: dict[str, int]) -> Iterator[tuple[str, float]]:
    for resource, amount in amounts.items():
        yield resource, amount / 1000 if resource == CPU else float(amount)
