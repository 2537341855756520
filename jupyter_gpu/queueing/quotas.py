"""How much each queue may take: quotas of queues and cohorts as one tree for each resource.

A queue lends what it does not use to its cohort, up to ``lending_limit``; the rest is its own (*local*) and its cohort never sees
it. What it holds above its own counts in its cohort, and so on up. It may take what is left of its own and what its cohort has
left, up to ``borrowing_limit`` above its own.

Source: Kueue v0.17, cohorts and hierarchical cohorts (https://kueue.sigs.k8s.io/docs/concepts/cohort/); the same arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from jupyter_gpu.schema import Amounts, QueueSet, Quota, Stock, units

_UNLIMITED = 1 << 62


class Share:
    """One resource in the tree: lists by node, in the units of `Amounts`."""

    __slots__ = ("borrowing", "local", "named", "resource", "subtree")

    def __init__(self, resource: str, nodes: int) -> None:
        self.resource = resource
        self.subtree = [0] * nodes
        """What is its own: nominal, and of a cohort also what its members lend to it."""
        self.local = [0] * nodes
        """The part of it that is not lent."""
        self.borrowing = [_UNLIMITED] * nodes
        self.named = [False] * nodes
        """Where a quota of it is set."""


class Tree:
    """Queues and cohorts as nodes; a parent's number is always larger than its members'."""

    def __init__(self, queues: QueueSet) -> None:
        parents = {cohort.name: cohort.parent for cohort in queues.cohorts}
        for name in [queue.cohort for queue in queues.queues] + list(parents.values()):
            if name is not None:
                parents.setdefault(name, None)
        numbers = count()
        self.queues: dict[str, int] = {queue.name: next(numbers) for queue in queues.queues}
        self.cohorts: dict[str, int] = {name: next(numbers) for name in _upwards(parents)}
        self.specs = list(queues.queues)
        self.parent = [self.cohorts[queue.cohort] if queue.cohort is not None else -1 for queue in queues.queues]
        self.parent += [-1 if (parent := parents[name]) is None else self.cohorts[parent] for name in self.cohorts]
        quotas: dict[int, Mapping[str, Quota]] = {self.queues[queue.name]: queue.quotas for queue in queues.queues}
        quotas |= {self.cohorts[cohort.name]: cohort.quotas for cohort in queues.cohorts}
        self.members: list[list[int]] = [[] for _ in self.parent]
        self.height = [0] * len(self.parent)
        self.root = list(range(len(self.parent)))
        for node, above in enumerate(self.parent):
            if above >= 0:
                self.members[above].append(node)
                self.height[above] = max(self.height[above], self.height[node] + 1)
        for node in reversed(range(len(self.parent))):
            self.root[node] = node if self.parent[node] < 0 else self.root[self.parent[node]]
        self.shares = {name: self._share(name, quotas) for name in sorted({name for one in quotas.values() for name in one})}
        self._mentioned = {
            (share.resource, self.root[node]) for share in self.shares.values() for node, is_ in enumerate(share.named) if is_
        }

    def _share(self, resource: str, quotas: Mapping[int, Mapping[str, Quota]]) -> Share:
        share = Share(resource, len(self.parent))
        for node, parent in enumerate(self.parent):  # members first
            if (quota := quotas.get(node, {}).get(resource)) is not None:
                share.named[node] = True
                share.subtree[node] += units(resource, quota.nominal)
                if quota.lending_limit is not None:
                    share.local[node] = max(0, share.subtree[node] - units(resource, quota.lending_limit))
                if quota.borrowing_limit is not None:
                    share.borrowing[node] = units(resource, quota.borrowing_limit)
            if parent >= 0:
                share.subtree[parent] += share.subtree[node] - share.local[node]
        return share

    def path(self, node: int) -> Iterator[int]:
        """Yield the cohorts above a node, the nearest first."""
        while (node := self.parent[node]) >= 0:
            yield node

    def demand(self, node: int, amounts: Amounts) -> tuple[tuple[Share, int], ...]:
        """Return what of an amount counts for a queue: cores and memory only where its tree has a quota of them."""
        root = self.root[node]
        return tuple((self.shares[name], amount) for name, amount in amounts.items() if (name, root) in self._mentioned)

    def covers(self, node: int, device: str) -> bool:
        """Whether devices of a resource may be had from a queue at all: its own quotas must name it."""
        return device in self.shares and self.shares[device].named[node]

    def most(self, share: Share, node: int) -> int:
        """Return the most that a node may ever hold: with nobody else there."""
        if (parent := self.parent[node]) < 0:
            return share.subtree[node]
        return min(share.local[node] + self.most(share, parent), share.subtree[node] + share.borrowing[node])


class Usage:
    """What the nodes of a tree hold at a time. It can be changed and copied."""

    __slots__ = ("_used", "tree")

    def __init__(self, tree: Tree, used: dict[str, list[int]] | None = None) -> None:
        self.tree = tree
        self._used = {name: [0] * len(tree.parent) for name in tree.shares} if used is None else used

    def copy(self) -> Usage:
        """Return one that can be changed for itself."""
        return Usage(self.tree, {name: used.copy() for name, used in self._used.items()})

    def used(self, share: Share, node: int) -> int:
        """Return what counts against a node's own."""
        return self._used[share.resource][node]

    def change(self, share: Share, node: int, amount: int) -> None:
        """Let a queue hold so much more, or less; what is above its local part counts in its cohort, too."""
        used, local, parent = self._used[share.resource], share.local, self.tree.parent
        while node >= 0 and amount:
            above = used[node] - local[node]
            used[node] += amount
            amount = max(0, above + amount) - max(0, above)
            node = parent[node]

    def available(self, share: Share, node: int) -> int:
        """Return how much more a node may take now; below zero if it holds more than it may by now."""
        used, parent = self._used[share.resource][node], self.tree.parent[node]
        if parent < 0:
            return share.subtree[node] - used
        local, above = share.local[node], self.available(share, parent)
        if share.borrowing[node] != _UNLIMITED:
            lent_and_left = share.subtree[node] - local - max(0, used - local)
            above = min(above, lent_and_left + share.borrowing[node])
        return max(0, local - used) + above

    def has(self, node: int, demand: Iterable[tuple[Share, int]]) -> bool:
        """Whether a queue may take so much more now."""
        return all(amount <= 0 or amount <= self.available(share, node) for share, amount in demand)

    def exceeds(self, share: Share, node: int, more: int = 0) -> bool:
        """Whether a node holds, or with so much more would hold, more than its own."""
        return self._used[share.resource][node] + more > share.subtree[node]

    def borrows(self, node: int, demand: Iterable[tuple[Share, int]]) -> int:
        """Return 0 if a queue has so much left of its own, else the height of the lowest cohort that has."""
        return max((self.reach(share, node, amount)[0] for share, amount in demand), default=0)

    def reach(self, share: Share, node: int, amount: int) -> tuple[int, bool]:
        """Return the height of the lowest subtree that has so much left, and whether there are larger ones around it."""
        tree = self.tree
        has_parent = tree.parent[node] >= 0
        if not has_parent or not self.exceeds(share, node, amount):
            return 0, has_parent
        used = self._used[share.resource]
        rest, here = amount - max(0, share.local[node] - used[node]), node
        for here in tree.path(node):
            if not self.exceeds(share, here, rest):
                return tree.height[here], tree.parent[here] >= 0
            rest -= max(0, share.local[here] - used[here])
        return tree.height[here], False


def effective(queues: QueueSet, stocks: Iterable[Stock]) -> QueueSet:
    """Return the queues by which it is decided: those that are set, else one with all devices."""
    if queues.queues:
        return queues
    capacity: Counter[str] = Counter()
    for stock in stocks:
        capacity[stock.resource] += stock.capacity
    return QueueSet.default(capacity).model_copy(update={"starve_after_s": queues.starve_after_s})


def _upwards(parents: Mapping[str, str | None]) -> list[str]:
    """Return the cohorts, members before their parents."""

    def depth(name: str) -> int:
        return 0 if (parent := parents[name]) is None else 1 + depth(parent)

    return sorted(parents, key=lambda name: (-depth(name), name))
