"""What the cluster offers, and what this account may see of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_gpu.backends.kubernetes.attempts import Thing, condition
from jupyter_gpu.backends.kubernetes.manifests import roles
from jupyter_gpu.backends.kubernetes.manifests.job import Customs
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.backends.kubernetes.phases import Sizes
from jupyter_gpu.backends.kubernetes.products import fitting_nodes, product_values
from jupyter_gpu.backends.kubernetes.quantities import quantity
from jupyter_gpu.backends.kubernetes.tasks import together
from jupyter_gpu.errors import NotAllowedError, NotFoundError, QuotaExceededError
from jupyter_gpu.schema import KubernetesSettings, Missing, Node, Start, WorkloadSpec, format_bytes

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_FRESH_S = 60.0
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_LIVING_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_KNOWN_GROUPS = {"kueue.x-k8s.io": "Kueue", "jobset.x-k8s.io": "JobSet", "trainer.kubeflow.org": "Kubeflow Trainer"}


class Discovery:
    """What has been found out, kept for a minute."""

    def __init__(self, client: Client, settings: KubernetesSettings) -> None:
        self._client, self._settings = client, settings
        self._nodes: list[dict[str, Any]] | None = None
        self._quotas: list[dict[str, Any]] = []
        self.customs = Customs(limits_cpu=True, image_pull_policy=settings.image_pull_policy)
        self._read_at: float | None = None
        self.missing: tuple[Missing, ...] = ()

    @property
    def sizes(self) -> Sizes | None:
        """The most that a node could hold, as far as that is known already; None where nodes may be added."""
        return None if self._settings.autoscaled or self._nodes is None else Sizes(_largest(self._nodes))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The cluster's nodes, as far as they are known already."""
        return tuple(_node(node) for node in self._nodes or ())

    @property
    def node_documents(self) -> Mapping[str, Thing] | None:
        """The nodes as the API server shows them, by name; None where they can't be read."""
        return None if self._nodes is None else {node["metadata"]["name"]: node for node in self._nodes}

    @property
    def quotas(self) -> Sequence[Thing]:
        """The namespace's ResourceQuotas, as far as they are known already."""
        return self._quotas

    @property
    def capacity(self) -> dict[str, int]:
        """The devices of all nodes, by resource name, as far as they are known already."""
        return capacity_of(self._nodes or ())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about the nodes."""
        emulated = any(
            "EMULATED" in value for node in self._nodes or () for value in (node["metadata"].get("labels") or {}).values()
        )
        return ("GPUs are emulated: there is no device behind them",) if emulated else ()

    async def refresh(self, *, at_most_s: float = _FRESH_S) -> None:
        """Read nodes, quotas and the namespace, unless that was done a moment ago."""
        if self._read_at is not None and time.monotonic() - self._read_at < at_most_s:
            return
        client, missing = self._client, []
        seen: dict[str, Any] = {}

        async def read(what: str, why: str, call: Any) -> None:
            try:
                seen[what] = await call
            except NotAllowedError as error:
                missing.append(Missing(what=what, why=why, right=getattr(error, "right", None)))
            except NotFoundError:
                missing.append(Missing(what=what, why="it does not exist"))

        await together(
            lambda: read("nodes", "capacity and impossible sizes can't be told", client.list_all(Objects.NODES)),
            lambda: read("resource quotas", "what a quota never allows is refused late", client.list_all(Objects.QUOTAS)),
            lambda: read(
                "namespace", "whether it demands non-root can't be told", client.get(Objects.NAMESPACES, client.namespace)
            ),
        )
        self._nodes = seen["nodes"][0] if "nodes" in seen else None
        self._quotas = seen["resource quotas"][0] if "resource quotas" in seen else []
        labels = (seen.get("namespace") or {}).get("metadata", {}).get("labels") or {}
        self.customs = Customs(
            limits_cpu="resource quotas" not in seen or any("limits.cpu" in _hard(quota) for quota in self._quotas),
            run_as_non_root=_RESTRICTED.items() <= labels.items(),
            image_pull_policy=self._settings.image_pull_policy,
        )
        self.missing, self._read_at = tuple(missing), time.monotonic()

    async def check(self, spec: WorkloadSpec) -> None:
        """Refuse what could never run here, as far as this account may see; `refresh` comes first.

        Raises:
            QuotaExceededError: more than any node, all nodes or a ResourceQuota has.
        """
        try:
            self._check(spec)
        except QuotaExceededError:
            await self.refresh(at_most_s=1.0)  # a node may have come since
            self._check(spec)

    def _check(self, spec: WorkloadSpec) -> None:
        for quota in self._quotas:
            _check_quota(quota, spec)
        if self.sizes:
            _check_sizes(spec, self.sizes.largest, capacity_of(self._nodes or ()))
            _check_product(spec, self._nodes or ())

    def products(self, spec: WorkloadSpec) -> tuple[str, ...]:
        """Return the values of the product's node label that will do, as far as nodes are known already."""
        return product_values(spec.resources, fitting_nodes(spec.resources, self._nodes or ()))

    async def taken(self) -> tuple[dict[str, Counter[str]] | None, Missing | None]:
        """Return by node the devices that its pods ask for, of all namespaces; or what right that would need."""
        if self._nodes is None:
            return None, None
        taken: dict[str, Counter[str]] = {}
        try:
            async for pods, _ in self._client.pages(Objects.ALL_PODS, **_LIVING_PODS):
                for pod in pods:
                    if node := pod["spec"].get("nodeName"):
                        taken.setdefault(node, Counter()).update(_devices_asked(pod))
        except NotAllowedError as error:
            right = getattr(error, "right", None)
            return None, Missing(what="pods of the cluster", why="free devices can't be told", right=right)
        return taken, None

    async def served(self) -> tuple[str, list[str]]:
        """Return the server's version, and what it serves that we know of."""
        version, groups = await together(
            lambda: self._client.call("GET", "/version", what="read the version"),
            lambda: self._client.call("GET", "/apis", what="read what is served"),
        )
        names = {group["name"] for group in groups["groups"]}
        return version["gitVersion"], [engine for group, engine in _KNOWN_GROUPS.items() if group in names]

    async def missing_rights(self) -> tuple[Missing, ...]:
        """Return each right of the role jupyter-gpu-user that this account lacks in the namespace."""
        review = {"spec": {"namespace": self._client.namespace}}
        answer = await self._client.call("POST", self._client.path(Objects.RULES_REVIEWS), body=review, what="review rights")
        rules, incomplete = answer["status"].get("resourceRules") or (), answer["status"].get("incomplete")
        lacking = [right for right in roles.user_rights() if not any(_allows(rule, *right) for rule in rules)]
        if incomplete and not rules:
            return ()  # an authorizer that can't list its rules; what fails will say so
        return tuple(
            Missing(
                what=f"{verb} {resource}", why=f"needed to {roles.PURPOSES[group, resource]}", right=_right(verb, group, resource)
            )
            for verb, group, resource in lacking
        )


def capacity_of(nodes: Iterable[Thing]) -> dict[str, int]:
    """Return the devices of all nodes, by resource name: what the device plugins say can be allocated."""
    total: Counter[str] = Counter()
    for node in nodes:
        total.update(devices_of(node))
    return dict(total)


def devices_of(node: Thing) -> dict[str, int]:
    """Return the devices that can be allocated on a node, by resource name."""
    return _devices(node["status"].get("allocatable") or {})


def _devices(amounts: Mapping[str, str]) -> dict[str, int]:
    """Return the extended resources among a node's: those of a domain that is not Kubernetes' own.

    Source: "Extended resources" in the documentation of Kubernetes.
    """
    return {name: int(quantity(amount)) for name, amount in amounts.items() if "/" in name and "kubernetes.io/" not in name}


def _devices_asked(pod: Thing) -> Counter[str]:
    asked: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        asked.update(_devices((container.get("resources") or {}).get("requests") or {}))
    return asked


def _largest(nodes: Iterable[Thing]) -> dict[str, float]:
    """Return the most any one node has; of devices also those that are ill now, for they may recover."""
    most: dict[str, float] = {}
    for node in nodes:
        allocatable, capacity = node["status"].get("allocatable") or {}, node["status"].get("capacity") or {}
        amounts = {name: quantity(allocatable[name]) for name in ("cpu", "memory") if name in allocatable}
        amounts |= {name: float(count) for name, count in _devices(capacity).items()}
        for name, amount in amounts.items():
            most[name] = max(amount, most.get(name, 0.0))
    return most


def _node(node: Thing) -> Node:
    allocatable = node["status"].get("allocatable") or {}
    return Node(
        name=node["metadata"]["name"],
        devices=_devices(allocatable),
        cpus=quantity(allocatable.get("cpu", "0")),
        memory_bytes=int(quantity(allocatable.get("memory", "0"))),
        ready=condition(node, "Ready") is not None,
    )


def _check_sizes(spec: WorkloadSpec, largest: Mapping[str, float], capacity: Mapping[str, int]) -> None:
    asked, device = spec.resources, spec.resources.accelerator.resource
    if asked.gpus > largest.get(device, 0):
        others = ", ".join(f"{count} {name}" for name, count in sorted(capacity.items()) if name != device)
        advice = f"there is {others}" if others else "no node has a device"
        holder = "one node of this cluster" if device in largest else "this cluster"
        raise QuotaExceededError(
            holder, device, asked=asked.gpus, limit=largest.get(device, 0), advice=advice if device not in largest else ""
        )
    if asked.gpus * _at_once(spec) > (total := max(capacity.get(device, 0), largest.get(device, 0))):
        raise QuotaExceededError("this cluster", device, asked=asked.gpus * _at_once(spec), limit=total)
    if asked.cpus > largest.get("cpu", 0):
        raise QuotaExceededError("one node of this cluster", "cores", asked=asked.cpus, limit=largest.get("cpu", 0))
    if asked.memory_bytes > largest.get("memory", 0):
        has = format_bytes(int(largest.get("memory", 0)))
        raise QuotaExceededError(
            "one node of this cluster",
            "bytes of memory",
            asked=asked.memory_bytes,
            limit=largest.get("memory", 0),
            advice=f"ask for at most {has}",
        )


def _check_product(spec: WorkloadSpec, nodes: Sequence[Thing]) -> None:
    asked = spec.resources
    if not asked.gpus or asked.product is None:
        return
    if fitting := fitting_nodes(asked, nodes):
        _check_sizes(spec, _largest(fitting), capacity_of(fitting))
        return
    products = product_values(asked, nodes)
    advice = f"its products are {', '.join(products)}" if products else "no label of a node with such a device tells its product"
    raise QuotaExceededError("this cluster", f"{asked.accelerator} ({asked.product})", asked=asked.gpus, limit=0, advice=advice)


def _hard(quota: Thing) -> Mapping[str, str]:
    hard: Mapping[str, str] = quota["spec"].get("hard") or {}
    return hard


def _check_quota(quota: Thing, spec: WorkloadSpec) -> None:
    """Refuse what a ResourceQuota never allows. One with scopes counts only some pods: the Job controller finds out."""
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        return
    device, asked = spec.resources.accelerator.resource, spec.resources
    wanted = {
        f"requests.{device}": asked.gpus,
        "requests.cpu": asked.cpus,
        "cpu": asked.cpus,
        "requests.memory": asked.memory_bytes,
        "memory": asked.memory_bytes,
        "limits.memory": asked.memory_bytes,
        "pods": 1,
        "count/pods": 1,
    }
    for resource, each in wanted.items():
        if resource in _hard(quota) and each * _at_once(spec) > (limit := quantity(_hard(quota)[resource])):
            raise QuotaExceededError(f"the quota {quota['metadata']['name']}", resource, asked=each * _at_once(spec), limit=limit)


def _at_once(spec: WorkloadSpec) -> int:
    """Return how many replicas must fit at the same time."""
    return spec.replicas if spec.start is Start.TOGETHER else 1


def _allows(rule: Mapping[str, Any], verb: str, group: str, resource: str) -> bool:
    wanted = ((verb, "verbs"), (group, "apiGroups"), (resource, "resources"))
    return not rule.get("resourceNames") and all({word, "*"} & set(rule.get(key) or ()) for word, key in wanted)


def _right(verb: str, group: str, resource: str) -> str:
    return f"{verb} {resource}.{group}" if group else f"{verb} {resource}"
