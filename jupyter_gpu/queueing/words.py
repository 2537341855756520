"""Why one waits, and why one must yield: Reasons. Those of equal wants are equal, and made once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jupyter_gpu.queueing.decisions import State
from jupyter_gpu.queueing.preempting import Rule, Victim
from jupyter_gpu.queueing.quotas import Share, Tree
from jupyter_gpu.queueing.room import Room
from jupyter_gpu.queueing.starving import Starving
from jupyter_gpu.queueing.wants import Want
from jupyter_gpu.schema import CPU, MEMORY, Claim, Holding, Reason, format_bytes

_RULES = {
    Rule.IN_QUEUE: "of the same queue",
    Rule.RECLAIM: "of queue {queue}, which takes back what it had lent",
    Rule.BORROWING: "of queue {queue}, of higher priority",
}


class Words:
    """The Reasons of one decision."""

    def __init__(
        self,
        tree: Tree,
        state: State,
        room: Room,
        starving: Mapping[str, Starving],
        coming: Mapping[str, tuple[Claim, Want]],
        callers: Collection[str],
    ) -> None:
        self._tree, self._state, self._room = tree, state, room
        self._starving, self._coming, self._callers = starving, coming, callers
        self._for_whom = [(one.claim, one.want) for one in starving.values()] + list(coming.values())
        self._known: dict[int, Reason] = {}

    def why(self, claim: Claim, want: Want, leaving: Sequence[Holding]) -> Reason:
        """Return why one waits."""
        if claim.id in self._coming:
            return self._coming_to(claim, want, leaving)
        if claim.id in self._starving:
            return self._first(self._short(want))
        reason = self._known.get(id(want))
        if reason is None:
            reason = self._known[id(want)] = self._kept(want) if self._room.fits(want) else self._short(want)
        return reason

    def gone(self, claim: Claim) -> Reason:
        """Return why one waits whose queue is not there."""
        there = ", ".join(sorted(self._tree.queues)) or "none"
        words = f"its queue {claim.queue!r} is not there any more; there are: {there}"
        return Reason(code="queue.gone", message=words, facts={"queue": claim.queue})

    def preempted(self, victim: Victim, by: Claim) -> Reason:
        """Return why one must yield."""
        who = _RULES[victim.rule].format(queue=by.queue)
        facts = {
            "by": by.id,
            "by_name": by.name,
            "by_owner": by.owner,
            "by_queue": by.queue,
            "by_priority": by.priority,
            "rule": victim.rule.value,
        }
        words = f"it had to make room for {called(by)} (priority {by.priority}) {who}"
        return Reason(code="end.preempted", message=words, facts=facts)

    def _coming_to(self, claim: Claim, want: Want, leaving: Sequence[Holding]) -> Reason:
        pools = set(want.pools)
        shares = {share.resource for share, _ in want.demand}
        from_whom = [
            one
            for one in leaving
            if any((one.device, model) in pools for model in one.models) or (one.device in {pool[0] for pool in pools})
        ] or [one for one in leaving if shares & set(one.holds)]
        from_whom.sort(key=lambda one: (one.sequence, one.id, one.rank or 0))
        names = list(dict.fromkeys(called(one) for one in from_whom))
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        words = f"waits for {_asked(want)} that {shown} {'is' if len(names) == 1 else 'are'} giving back"
        facts: dict[str, Any] = {
            "resource": want.device,
            "asked": want.gpus,
            "from": list(dict.fromkeys(one.id for one in from_whom)),
        }
        return Reason(code="queue.preempting" if claim.id in self._callers else "queue.coming", message=words, facts=facts)

    def _kept(self, want: Want) -> Reason:
        """Of one that would fit, were it not for others."""
        pools, shares = set(want.pools), {share for share, _ in want.demand}
        others = [one for one in self._for_whom if pools & set(one[1].pools)]
        others = others or [one for one in self._for_whom if shares & {share for share, _ in one[1].demand}]
        free = self._room.devices(want.pools)
        facts: dict[str, Any] = {"resource": want.device, "asked": want.gpus, "free": free}
        if not others:
            return Reason(code="queue.kept", message=f"waits for {_asked(want)}: {free} free, and kept for others", facts=facts)
        claim, _ = others[0]
        because = "which has waited long" if claim.id in self._starving else "for which others make room"
        facts |= {"for": claim.id, "for_name": claim.name, "for_owner": claim.owner, "for_queue": claim.queue}
        words = f"waits for {_asked(want)}: {free} free, and kept for {called(claim)}, {because}"
        return Reason(code="queue.kept", message=words, facts=facts)

    def _short(self, want: Want) -> Reason:
        """Of one that does not fit: devices are short, or its quota is."""
        if not want.covered:
            words = f"waits for {_asked(want)}: queue {want.queue} has none of them to give any more"
            facts = {"resource": want.device, "asked": want.gpus, "queue": want.queue, "nominal": 0, "most": 0, "left": 0}
            return Reason(code="queue.quota", message=words, facts=facts)
        free = self._room.devices(want.pools)
        short = self._room.short_of(want)
        of_devices = next((amount for share, amount in short.items() if share.resource == want.device), 0)
        if short and (free >= want.gpus or of_devices > want.gpus - free):
            share = next((share for share in short if share.resource == want.device), next(iter(short)))
            return self._quota(want, share)
        return self._busy(want, free)

    def _busy(self, want: Want, free: int) -> Reason:
        pools = set(want.pools)
        capacity = sum(stock.capacity for stock in self._state.stocks if (stock.resource, stock.model) in pools)
        words = f"waits for {_asked(want)}: {free} of {capacity} free"
        facts = {"resource": want.device, "asked": want.gpus, "free": free, "capacity": capacity}
        return Reason(code="queue.busy", message=words, facts=facts | ({"product": want.product} if want.product else {}))

    def _quota(self, want: Want, share: Share) -> Reason:
        tree, usage, node, resource = self._tree, self._room.usage, want.node, share.resource
        asked = next(amount for other, amount in want.demand if other is share)
        used, nominal = usage.used(share, node), share.subtree[node]
        left = max(0, usage.available(share, node))
        most = tree.most(share, node)
        words = f"waits for {shown(resource, asked)}: queue {want.queue} holds {amount_of(resource, used)}"
        words += f" of its {amount_of(resource, nominal)}"
        if tree.parent[node] >= 0:
            cohort = tree.specs[node].cohort
            if most <= nominal:
                words += ", and may not borrow"
            elif used >= most:
                words += f", and may borrow no more than {amount_of(resource, most - nominal)}"
            else:
                words += f", and cohort {cohort} has {amount_of(resource, left) if left else 'none'} left for it"
        facts: dict[str, Any] = {
            "resource": resource,
            "asked": asked,
            "queue": want.queue,
            "used": used,
            "nominal": nominal,
            "most": most,
            "left": left,
        }
        return Reason(code="queue.quota", message=words, facts=facts)

    def _first(self, reason: Reason) -> Reason:
        words = reason.message + "; it has waited long, so what becomes free is kept for it"
        return Reason(code=reason.code, message=words, facts={**reason.facts, "kept": True})


def called(one: Claim | Holding) -> str:
    """Return how a Workload is called for people: its owner's name before its own."""
    name = one.name or one.id
    return f"{one.owner}/{name}" if one.owner else name


def amount_of(resource: str, amount: int) -> str:
    """Return a number of a resource for people, without its name unless it has a unit."""
    if resource == CPU:
        return f"{amount / 1000:g} core" + ("" if amount == 1000 else "s")
    return format_bytes(amount) if resource == MEMORY else str(amount)


def shown(resource: str, amount: int) -> str:
    """Return a number of a resource for people."""
    if resource == MEMORY:
        return f"{format_bytes(amount)} of memory"
    return amount_of(resource, amount) if resource == CPU else f"{amount} {resource}"


def _asked(want: Want) -> str:
    if not want.device:
        return " and ".join(shown(share.resource, amount) for share, amount in want.demand)
    return f"{want.gpus} {want.device}" + (f" ({want.product})" if want.product else "")
