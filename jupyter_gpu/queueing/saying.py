"""A forecast's answer in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_gpu.queueing.deciding import Settled
from jupyter_gpu.queueing.decisions import Decision
from jupyter_gpu.queueing.words import shown
from jupyter_gpu.schema import Claim, InTheWay

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


class Saying:
    """The sentences about one claim."""

    def __init__(self, claim: Claim, settled: Settled, decision: Decision) -> None:
        self._claim, self._settled, self._decision = claim, settled, decision
        self._want = settled.facts.wants.of(claim)

    def starts(self) -> str:
        """Return the answer for one that starts now."""
        claim, count = self._claim, self._decision.starts[self._claim.id]
        if not claim.together and count < claim.replicas:
            return f"{count} of its {claim.replicas} replicas start now, the others as they fit"
        return "it starts now" + (f" with {devices(claim.device, claim.gpus * count)}" if claim.device else "")

    def waits(
        self,
        smaller: int | None,
        within_s: float | None,
        holders: Sequence[InTheWay],
        preempts: Sequence[InTheWay],
        ahead: Sequence[InTheWay],
    ) -> str:
        """Return the answer for one that waits."""
        claim, want = self._claim, self._want
        if preempts:
            return f"{self._free()}: it starts as soon as {_named(preempts, self._want.device)} made room for it"
        words = self._free()
        if smaller:
            words += f": gpus={smaller} starts now; {claim.gpus if claim.device else 'it'}"
        else:
            words += f": {devices(want.device, want.gpus) if want.device else 'it'}"
        words += f" would be {ordinal(self._decision.positions.get(claim.id, 1))} in line"
        before = next((one for one in holders if one.ends_within_s is not None), None) or next(iter(holders), None)
        before = before or next(iter(ahead), None)
        if before is not None:
            words += f" behind {_one(before, want.device)}"
        if within_s is not None:
            words += f"; it starts in {span(within_s)} at the latest"
        return words

    def _free(self) -> str:
        """What is free, and where the quota says less, what the queue may still take."""
        want, room = self._want, self._settled.step.now
        if want.device is None:
            reason = self._decision.reasons.get(self._claim.id)
            return reason.message if reason else "it waits"
        free = room.devices(want.pools)
        product = f" ({want.product})" if want.product else ""
        words = f"{devices(want.device, free)}{product} free"
        for share, amount in want.demand:
            left = max(0, room.usage.available(share, want.node))
            if share.resource == want.device and left < free and left < amount:
                words += f", your queue may take {left or 'no'} more"
            elif share.resource != want.device and left < amount:
                words += f", your queue may take {shown(share.resource, left) if left else 'no'} more {share.resource}"
        reason = self._decision.reasons.get(self._claim.id)
        if reason is not None and reason.code == "queue.kept":
            words += f", kept for {reason.facts.get('for_name') or reason.facts.get('for') or 'others'}"
        return words


def devices(resource: str | None, count: int) -> str:
    """Return so many devices for people: ``2 GPUs``, ``1 nvidia.com/mig-1g.10gb``."""
    if resource is None or not resource.endswith("/gpu"):
        return f"{count} {resource or 'devices'}"
    return f"{count} GPU" + ("" if count == 1 else "s")


def ordinal(number: int) -> str:
    """Return a place in line for people: ``third``, ``number 14``."""
    return _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"number {number}"


def span(seconds: float) -> str:
    """Return a time for people, rounded up: ``50 s``, ``38 min``, ``3.5 h``."""
    if seconds < 60:
        return f"{max(0, round(seconds))} s"
    if seconds < 7200:
        return f"{-(-seconds // 60):.0f} min"
    return f"{seconds / 3600:.3g} h"


def _one(one: InTheWay, device: str | None) -> str:
    name = f"{one.owner}/{one.name}" if one.owner else one.name
    facts = [devices(device, one.holds[device])] if device in one.holds and device is not None else []
    if one.ends_within_s is not None:
        facts.append(f"at most {span(one.ends_within_s)} left")
    return f"{name} ({', '.join(facts)})" if facts else name


def _named(those: Sequence[InTheWay], device: str | None) -> str:
    names = [_one(one, device) for one in those[:2]]
    if len(those) > 2:
        names.append(f"{len(those) - 2} more")
    return " and ".join(names) + (" has" if len(those) == 1 else " have")
