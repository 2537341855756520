"""Would it start now? If not: what is short, who holds it, after whom it comes, and what smaller size would start.

The answer comes from the very decision that submitting leads to, on a copy of what the place says of itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from jupyter_gpu.errors import QuotaExceededError
from jupyter_gpu.queueing.deciding import Settled, decide, decision, settle
from jupyter_gpu.queueing.decisions import Decision, State
from jupyter_gpu.queueing.limits import check_quota
from jupyter_gpu.queueing.quotas import effective
from jupyter_gpu.queueing.replay import starts_within_s
from jupyter_gpu.queueing.saying import Saying
from jupyter_gpu.queueing.wants import Want
from jupyter_gpu.schema import (
    Basis,
    Claim,
    Forecast,
    Holding,
    InTheWay,
    Place,
    QueueSet,
    QueueSpec,
    Quota,
    Stock,
    WorkloadSpec,
    fits_product,
    units,
)

_TRIES = 64
"""How many smaller sizes are looked at; the largest that could fit comes first."""


def forecast(spec: WorkloadSpec, place: Place, now_s: float | None = None) -> Forecast:
    """Return whether a Workload would start at a place if it were submitted now, and if not, why and when.

    One that already waits there (by its id) is looked at in its place in line.

    Args:
        spec: what would be submitted.
        place: as it describes itself. Where it is not jupyter-gpu that decides, or the place could not read all, the answer is
            an estimate from what it could read: devices, quotas and their use; where it may have more devices than it shows,
            and those would be needed, the answer is that it can't be told.
        now_s: the time on the place's clock; None is when it described itself.

    Raises:
        InvalidRequestError: the place decides by queues of which this is none.
    """
    now_s = place.time_s if now_s is None else now_s
    basis = Basis.EXACT if place.decides else Basis.ESTIMATE
    state = _state(spec, place, now_s)
    claim = next((one for one in place.claims if one.id == spec.id), None) or _claim(spec, state)
    state = replace(state, claims=[one for one in state.claims if one.id != claim.id])
    grown = _grown(claim, state, place)
    try:
        check_quota(claim, grown.queues, grown.stocks, place.name)
    except QuotaExceededError as error:
        smaller = _smaller(claim, state)
        return Forecast(
            starts_now=False,
            basis=basis,
            message=str(error) + (f"; gpus={smaller} starts now" if smaller else ""),
            never=True,
            smaller_gpus=smaller,
        )
    if grown is not state:
        return _cannot_tell(claim, state, place)
    settled = settle(_with(state, claim))
    found = decision(settled)
    view = _View(claim, state, settled, found)
    if claim.id in found.starts:
        message = Saying(claim, settled, found).starts()
        return Forecast(starts_now=True, basis=basis, message=message, preempts=view.preempts(), within_s=0.0)
    smaller = _smaller(claim, state)
    within_s = starts_within_s(_with(state, claim), claim.id)
    holders, preempts, ahead = view.holders(), view.preempts(), view.ahead()
    return Forecast(
        starts_now=False,
        basis=basis,
        message=Saying(claim, settled, found).waits(smaller, within_s, holders, preempts, ahead),
        reason=found.reasons.get(claim.id),
        position=found.positions.get(claim.id),
        short=view.short,
        ahead=ahead,
        holders=holders,
        preempts=preempts,
        within_s=within_s,
        smaller_gpus=smaller,
    )


def _claim(spec: WorkloadSpec, state: State) -> Claim:
    sequences = [claim.sequence for claim in state.claims] + [holding.sequence for holding in state.holdings]
    return Claim.of(spec, max(sequences, default=0) + 1, state.now_s)


def _with(state: State, claim: Claim) -> State:
    return replace(state, claims=[*state.claims, claim])


def _state(spec: WorkloadSpec, place: Place, now_s: float) -> State:
    """Return what the place knows; where it can't tell, what follows from its capacity and the use of its queues."""
    stocks = place.stocks or tuple(
        Stock(resource, "", count, count if place.free is None else max(0, place.free.get(resource, 0)))
        for resource, count in place.capacity.items()
    )
    queues = place.queue_set
    if not place.decides and queues.queue(spec.queue) is None:
        everything = {resource: Quota(nominal=count) for resource, count in place.capacity.items()}
        queues = QueueSet(queues=(QueueSpec(name=spec.queue, quotas=everything),))
    holdings = place.holdings or tuple(_unknown(place))
    return State(place.claims, holdings, stocks, effective(queues, stocks), now_s)


def _unknown(place: Place) -> Iterable[Holding]:
    """Yield what queues hold where it can't be read who does."""
    for queue in place.queues:
        held = {resource: units(resource, amount) for resource, amount in queue.used.items() if amount}
        if held and not place.decides:
            yield Holding(f"in:{queue.name}", 0, queue.name, 0, held, preemptible=False, name=f"others in queue {queue.name}")


def _seen(claim: Claim, state: State) -> int:
    return sum(one.capacity for one in state.stocks if one.resource == claim.device and fits_product(claim.product, one.model))


def _grown(claim: Claim, state: State, place: Place) -> State:
    """Return the same state if its devices are enough; else, where there may be more, one with as many as that."""
    device, missing = claim.device, claim.gpus_at_once - _seen(claim, state)
    if not place.may_grow or device is None or missing <= 0:
        return state
    stocks = [*state.stocks, Stock(device, claim.product or "", missing, 0)]
    queue = state.queues.queue(claim.queue)
    quotas = queue.quotas if queue else {}
    if device in quotas and quotas[device].nominal != place.capacity.get(device, 0):
        return replace(state, stocks=stocks)  # somebody set that quota: it is no mere sum of the devices that are seen
    unlimited = QueueSpec(name=claim.queue, quotas={**quotas, device: Quota(nominal=claim.gpus_at_once)})
    return replace(state, stocks=stocks, queues=QueueSet(queues=(unlimited,)))


def _cannot_tell(claim: Claim, state: State, place: Place) -> Forecast:
    kind = f"{claim.device} ({claim.product})" if claim.product else claim.device
    smaller = _smaller(claim, state)
    words = f"it can't be told: {place.name} shows {_seen(claim, state) or 'no'} {kind}, and may have more"
    words += f"; gpus={smaller} starts now" if smaller else ""
    return Forecast(starts_now=False, basis=Basis.ESTIMATE, message=words, smaller_gpus=smaller)


def _smaller(claim: Claim, state: State) -> int | None:
    """Return the most devices per replica, fewer than asked for, with which it starts now and nobody must yield to it."""
    if not claim.device:
        return None
    at_once = claim.replicas if claim.together else 1
    free = sum(stock.free for stock in state.stocks if stock.resource == claim.device)
    largest = min(claim.gpus - 1, free // at_once)
    for gpus in range(largest, max(0, largest - _TRIES), -1):
        smaller = replace(claim, each={**claim.each, claim.device: gpus})
        found = decide(_with(state, smaller))
        if claim.id in found.starts and all(one.by.id != claim.id for one in found.yielding):
            return gpus
    return None


@dataclass
class _View:
    """What stands in the way of a claim that waits."""

    claim: Claim
    state: State
    settled: Settled
    decision: Decision

    def __post_init__(self) -> None:
        self.want: Want = self.settled.facts.wants.of(self.claim)
        self.short = self._short()

    def _short(self) -> dict[str, int]:
        room, want = self.settled.step.now, self.want
        short = {share.resource: missing for share, missing in room.short_of(want).items()}
        if want.device is not None and (missing := want.gpus - room.devices(want.pools)) > 0:
            short[want.device] = max(missing, short.get(want.device, 0))
        if not short and want.device is not None:
            short[want.device] = want.gpus  # there would be enough, but it is kept for others
        return short

    def ahead(self) -> tuple[InTheWay, ...]:
        """Return who waits in front of it in its queue."""
        line = next((line for line in self.settled.step.lines if any(one[0].id == self.claim.id for one in line)), [])
        before: list[InTheWay] = []
        for claim, _ in line:
            if claim.id == self.claim.id:
                break
            if claim.id in self.decision.reasons:
                before.append(self._waiting(claim))
        return tuple(before)

    def holders(self) -> tuple[InTheWay, ...]:
        """Return who holds what is short."""
        pools = set(self.want.pools)
        tree, node = self.settled.facts.tree, self.want.node
        devices_short = self.settled.step.now.devices(self.want.pools) < self.want.gpus
        found = [
            one.holding
            for one in self.settled.facts.held
            if (devices_short and not pools.isdisjoint(one.pools))
            or (
                not devices_short
                and one.node >= 0
                and tree.root[one.node] == tree.root[node]
                and any(share.resource in self.short for share, _ in one.demand)
            )
        ]
        return self._holding(found)

    def preempts(self) -> tuple[InTheWay, ...]:
        """Return who would be told to yield to it."""
        return self._holding([one.holding for one in self.decision.yielding if one.by.id == self.claim.id])

    def _holding(self, holdings: Sequence[Holding]) -> tuple[InTheWay, ...]:
        by_id: dict[str, list[Holding]] = {}
        for one in holdings:
            by_id.setdefault(one.id, []).append(one)
        found = [self._holder(parts) for parts in by_id.values()]
        return tuple(sorted(found, key=lambda one: (one.ends_within_s is None, one.ends_within_s or 0.0, one.id)))

    def _holder(self, parts: Sequence[Holding]) -> InTheWay:
        first = parts[0]
        limits = [part.ends_by_s for part in parts]
        known = [limit for limit in limits if limit is not None]
        held = {resource: sum(part.holds.get(resource, 0) for part in parts) for resource in self.short}
        return InTheWay(
            id=first.id,
            name=first.name or first.id,
            owner=first.owner,
            queue=first.queue,
            priority=first.priority,
            holds={resource: amount for resource, amount in held.items() if amount},
            ends_within_s=max(0.0, max(known) - self.state.now_s) if len(known) == len(limits) else None,
        )

    def _waiting(self, claim: Claim) -> InTheWay:
        return InTheWay(id=claim.id, name=claim.name or claim.id, owner=claim.owner, queue=claim.queue, priority=claim.priority)
