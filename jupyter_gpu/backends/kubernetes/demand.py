"""What the Workloads of a namespace want and have, and what there is, so that a forecast can be made. Pure functions.

It is an estimate: the scheduler decides, nodes are not whole to it as they are here, and of others only sums are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from jupyter_gpu.backends.kubernetes.attempts import Attempt, Thing, condition, rank_of
from jupyter_gpu.backends.kubernetes.discovery import Discovery, devices_of
from jupyter_gpu.backends.kubernetes.phases import has_ended, status_of
from jupyter_gpu.backends.kubernetes.quantities import quantity
from jupyter_gpu.backends.kubernetes.story import scheduled_at
from jupyter_gpu.queueing import State, queue_statuses
from jupyter_gpu.schema import (
    CPU,
    DEFAULT_QUEUE,
    MEMORY,
    Amounts,
    Claim,
    Holding,
    Phase,
    QueueSet,
    QueueSpec,
    QueueStatus,
    Quota,
    Start,
    Stock,
    WorkloadStatus,
    amounts,
    kind_of,
    units,
)

_CPU_NAMES, _MEMORY_NAMES = ("requests.cpu", "cpu"), ("requests.memory", "memory", "limits.memory")
_DEVICES = "requests."
_OTHERS = "others"


def claim_of(attempt: Attempt) -> Claim | None:
    """Return what those replicas want that have no node yet; None if there are none, or if they are not to start any more."""
    status, spec = status_of(attempt), attempt.spec
    waiting = sum(replica.phase is Phase.QUEUED for replica in status.replicas)
    if status.phase.is_final or attempt.wish or not waiting:
        return None
    claim = replace(Claim.of(spec, status.sequence, attempt.created.timestamp()), replicas=waiting)
    if claim.together or spec.max_parallel is None:
        return claim
    active = sum(not replica.phase.is_final for replica in status.replicas) - waiting
    return replace(claim, at_once=max(0, spec.max_parallel - active))


def holdings_of(attempt: Attempt, nodes: Mapping[str, Thing]) -> Iterator[Holding]:
    """Yield what those replicas hold that have a node.

    Args:
        attempt: the newest one at a Workload.
        nodes: by name, as far as they can be read.
    """
    status, spec = status_of(attempt), attempt.spec
    pods = [pod for pod in attempt.pods if scheduled_at(pod) and not has_ended(pod)]
    groups = [pods] if spec.start is Start.TOGETHER else [[pod] for pod in pods]
    device = spec.resources.accelerator.resource if spec.resources.gpus else None
    for group in filter(None, groups):
        models: Counter[str] = Counter()
        for pod in group:
            if device and (model := model_of(device, nodes.get(pod["spec"].get("nodeName", "")))):
                models[model] += spec.resources.gpus
        since = min(time for pod in group if (time := scheduled_at(pod)))
        yield Holding(
            id=spec.id,
            sequence=status.sequence,
            queue=spec.queue,
            priority=spec.priority,
            holds=amounts(spec.resources, len(group)),
            models=models,
            device=device,
            rank=None if spec.start is Start.TOGETHER else rank_of(group[0]),
            since_s=since.timestamp(),
            max_runtime_s=spec.max_runtime_s,
            ends_by_s=_ends_by_s(attempt, status, since),
            preemptible=False,
            leaving=attempt.wish is not None,
            kind=spec.kind,
            name=spec.name,
            owner=spec.owner,
        )


def _ends_by_s(attempt: Attempt, status: WorkloadStatus, since: datetime) -> float | None:
    """Return when it will have ended at the latest, by its limits."""
    spec = attempt.spec
    if spec.max_runtime_s is None:
        return None
    begins = status.started.timestamp() if status.started else since.timestamp() + spec.start_timeout_s
    return begins + spec.max_runtime_s + spec.grace_s


def model_of(resource: str, node: Thing | None) -> str:
    """Return the model of a node's devices by the label that the vendor's tools put there; empty where there is none."""
    kind = kind_of(resource)
    if node is None or kind is None or kind.product_label is None:
        return ""
    return str((node["metadata"].get("labels") or {}).get(kind.product_label, ""))


def taken_by(attempts: Iterable[Attempt]) -> dict[str, Counter[str]]:
    """Return by node the devices that the replicas of these attempts have, for where pods of others can't be read."""
    taken: dict[str, Counter[str]] = {}
    for attempt in attempts:
        asked = attempt.spec.resources
        for pod in attempt.pods:
            if (node := pod["spec"].get("nodeName")) and not has_ended(pod):
                taken.setdefault(node, Counter())[asked.accelerator.resource] += asked.gpus
    return taken


def stocks_of(nodes: Mapping[str, Thing], taken: Mapping[str, Mapping[str, int]]) -> tuple[Stock, ...]:
    """Return the devices of all nodes by resource and model.

    Args:
        nodes: by name; one that takes no pods now has nothing free.
        taken: the devices that pods there ask for, by the node's name.
    """
    capacity: Counter[tuple[str, str]] = Counter()
    free: Counter[tuple[str, str]] = Counter()
    for name, node in nodes.items():
        takes_pods = condition(node, "Ready") is not None and not node["spec"].get("unschedulable")
        for resource, count in devices_of(node).items():
            key = (resource, model_of(resource, node))
            capacity[key] += count
            free[key] += max(0, count - taken.get(name, {}).get(resource, 0)) if takes_pods else 0
    return tuple(Stock(resource, model, count, free[resource, model]) for (resource, model), count in sorted(capacity.items()))


def stocks_of_quotas(quotas: Iterable[Thing]) -> tuple[Stock, ...]:
    """Return the devices that quotas allow, for where nodes can't be read."""
    hard, used = _tightest(quotas)
    devices = {resource: limit for resource, limit in hard.items() if resource not in (CPU, MEMORY)}
    return tuple(
        Stock(resource, "", int(limit), max(0, int(limit - used[resource]))) for resource, limit in sorted(devices.items())
    )


def queue_set_of(quotas: Iterable[Thing], capacity: Mapping[str, int]) -> QueueSet:
    """Return the namespace's share as the one queue there is; no queue where no ResourceQuota limits what we count.

    Args:
        quotas: the ResourceQuotas of the namespace; those with scopes count only some pods, and are left out.
        capacity: devices of the cluster, which a quota may leave out.
    """
    hard, _ = _tightest(quotas)
    if not hard:
        return QueueSet()
    limits = {**{resource: float(count) for resource, count in capacity.items()}, **hard}
    shares = {resource: Quota(nominal=limit) for resource, limit in limits.items()}
    return QueueSet(queues=(QueueSpec(name=DEFAULT_QUEUE, quotas=shares),))


def asked_by(attempts: Iterable[Attempt]) -> Iterator[Amounts]:
    """Yield what each pod of these attempts asks for: those without a node count against a ResourceQuota as well."""
    for attempt in attempts:
        for pod in attempt.pods:
            if not has_ended(pod):
                yield amounts(attempt.spec.resources)


def held_by_others(quotas: Iterable[Thing], ours: Iterable[Amounts], now_s: float) -> Holding | None:
    """Return what pods that are not ours hold of the namespace's quota; None if there is nothing, or nothing is known.

    Args:
        quotas: the ResourceQuotas of the namespace.
        ours: what each of our pods asks for.
        now_s: now, in seconds since 1970.
    """
    _, used = _tightest(quotas)
    held = Counter({resource: units(resource, amount) for resource, amount in used.items()})
    for asked in ours:
        held.subtract({resource: amount for resource, amount in asked.items() if resource in held})
    rest = {resource: amount for resource, amount in held.items() if amount > 0}
    if not rest:
        return None
    device = next((resource for resource in rest if resource not in (CPU, MEMORY)), None)
    name = "other pods of the namespace"
    return Holding(_OTHERS, 0, DEFAULT_QUEUE, 0, rest, device=device, since_s=now_s, preemptible=False, name=name)


def _tightest(quotas: Iterable[Thing]) -> tuple[dict[str, float], dict[str, float]]:
    """Return by our resource names the limit of the tightest quota, and what is used of that."""
    hard: dict[str, float] = {}
    used: dict[str, float] = {}
    for quota in quotas:
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue
        counted = (quota.get("status") or {}).get("used") or {}
        for name, text in (quota["spec"].get("hard") or {}).items():
            resource, limit = _resource_of(name), quantity(text)
            if resource and (resource not in hard or limit < hard[resource]):
                hard[resource], used[resource] = limit, quantity(counted.get(name, "0"))
    return hard, used


def _resource_of(name: str) -> str | None:
    """Return our name of what a ResourceQuota limits; None for what we don't count."""
    if name in _CPU_NAMES:
        return CPU
    if name in _MEMORY_NAMES:
        return MEMORY
    resource = name.removeprefix(_DEVICES)
    return resource if name.startswith(_DEVICES) and "/" in resource else None


@dataclass(frozen=True)
class Standing:
    """All of it together."""

    claims: tuple[Claim, ...]
    holdings: tuple[Holding, ...]
    stocks: tuple[Stock, ...]
    queue_set: QueueSet
    now_s: float

    @classmethod
    def of(
        cls, attempts: Sequence[Attempt], discovery: Discovery, taken: Mapping[str, Mapping[str, int]] | None, now_s: float
    ) -> Standing:
        """Return how it stands.

        Args:
            attempts: the newest one of each Workload of this account.
            discovery: what is known of nodes and quotas.
            taken: by node the devices that pods ask for; None where only our own pods can be read.
            now_s: now, in seconds since 1970.
        """
        nodes, quotas = discovery.node_documents, discovery.quotas
        claims = [claim for attempt in attempts if (claim := claim_of(attempt))]
        holdings = [holding for attempt in attempts for holding in holdings_of(attempt, nodes or {})]
        others = held_by_others(quotas, asked_by(attempts), now_s)
        seen = taken_by(attempts) if taken is None else taken
        return cls(
            claims=tuple(sorted(claims, key=lambda claim: (-claim.priority, claim.sequence))),
            holdings=(*holdings, *((others,) if others else ())),
            stocks=stocks_of_quotas(quotas) if nodes is None else stocks_of(nodes, seen),
            queue_set=queue_set_of(quotas, discovery.capacity),
            now_s=now_s,
        )

    @property
    def free(self) -> dict[str, int]:
        """Devices that nobody holds, by resource name."""
        free: Counter[str] = Counter()
        for stock in self.stocks:
            free[stock.resource] += stock.free
        return dict(free)

    def queues(self) -> tuple[QueueStatus, ...]:
        """Return the queue that there is, and those that older Workloads name; who is not ours is counted, but not named."""
        mine = {claim.id for claim in self.claims} | {holding.id for holding in self.holdings if holding.id != _OTHERS}
        return queue_statuses(State(self.claims, self.holdings, self.stocks, self.queue_set, self.now_s), mine)
