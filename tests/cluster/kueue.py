"""Plays a scheduling story on a real Kueue: our queues as its objects, our Workloads as Jobs that nothing schedules.

Kueue knows only quota. The Jobs' pods name a scheduler that does not exist, so that none takes time to start or to end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio

from jupyter_gpu.schema import CohortSpec, Preemption, QueueSpec, Quota
from tests.cluster.plugin import Admin, eventually
from tests.stories import GPU, End, Rule, Step, Story, Submit

VERSION = "kueue.x-k8s.io/v1beta2"
KUEUE = f"/apis/{VERSION}"
VISIBILITY = "/apis/visibility.kueue.x-k8s.io/v1beta2"
JOBS = "/apis/batch/v1/namespaces/{namespace}/jobs"
WORKLOADS = f"{KUEUE}/namespaces/{{namespace}}/workloads"

RULES = {
    "InClusterQueue": Rule.IN_QUEUE,
    "InCohortReclamation": Rule.RECLAIM,
    "InCohortReclaimWhileBorrowing": Rule.BORROWING,
}
_PROBE = "probe"
_SETTLED_WITHIN_S = 60.0


def _quota_document(quota: Quota) -> dict[str, Any]:
    document: dict[str, Any] = {"name": GPU, "nominalQuota": f"{quota.nominal:g}"}
    if quota.borrowing_limit is not None:
        document["borrowingLimit"] = f"{quota.borrowing_limit:g}"
    if quota.lending_limit is not None:
        document["lendingLimit"] = f"{quota.lending_limit:g}"
    return document


def _groups(quotas: Mapping[str, Quota], flavor: str) -> list[dict[str, Any]]:
    if GPU not in quotas:
        return []
    flavors = [{"name": flavor, "resources": [_quota_document(quotas[GPU])]}]
    return [{"coveredResources": [GPU], "flavors": flavors}]


def _policy(words: str) -> str:
    """Return Kueue's spelling of a policy: ``lower_priority`` is LowerPriority."""
    return "".join(word.capitalize() for word in words.split("_"))


def _preemption(asked: Preemption) -> dict[str, Any]:
    borrowing: dict[str, Any] = {"policy": _policy(asked.borrow_within_cohort)}
    if asked.max_priority_threshold is not None:
        borrowing["maxPriorityThreshold"] = asked.max_priority_threshold
    return {
        "withinClusterQueue": _policy(asked.within_queue),
        "reclaimWithinCohort": _policy(asked.reclaim_within_cohort),
        "borrowWithinCohort": borrowing,
    }


@dataclass(frozen=True)
class Standing:
    """How it stands in Kueue, in the words of a `Step`."""

    holding: Mapping[str, int]
    waiting: Mapping[str, tuple[str, ...]]
    """By queue, next first."""


class Player:
    """Plays one story, in a namespace of its own; what is not in a namespace is named after it."""

    def __init__(self, admin: Admin, story: Story) -> None:
        self._admin, self._story = admin, story
        self._queue_of: dict[str, str] = {}
        self._jobs: dict[str, tuple[str, int]] = {}
        """Of those that have not ended: the Workload's name and a replica's devices, by the Job's name."""
        self._seen_preempted: set[tuple[str, str]] = set()
        self._probes = 0

    async def play(self) -> None:
        """Play all steps; an AssertionError names the first one after which Kueue stands differently."""
        async with self._queues():
            for number, step in enumerate(self._story.steps, 1):
                about = f"{self._story.name!r}, step {number}: {step.does}"
                await self._do(step)
                await self._settle(step, about)

    @asynccontextmanager
    async def _queues(self) -> AsyncIterator[None]:
        """Make the story's queues, and remove them."""
        made: list[str] = []

        async def make(plural: str, kind: str, name: str, **fields: Any) -> None:
            await self._admin.create(f"{KUEUE}/{plural}", f"{VERSION}/{kind}", name, **fields)
            made.append(f"{KUEUE}/{plural}/{name}")

        queues = self._story.queues
        await make("resourceflavors", "ResourceFlavor", self._named("any"), spec={})
        for priority in {step.does.priority for step in self._story.steps if isinstance(step.does, Submit)}:
            await make("workloadpriorityclasses", "WorkloadPriorityClass", self._named(f"p{priority}"), value=priority)
        for cohort in queues.cohorts:
            await make("cohorts", "Cohort", self._named(cohort.name), spec=self._cohort(cohort))
        for queue in (*queues.queues, QueueSpec(name=_PROBE, quotas={GPU: Quota(nominal=1000)})):
            await make("clusterqueues", "ClusterQueue", self._named(queue.name), spec=self._cluster_queue(queue))
            path = f"{KUEUE}/namespaces/{{namespace}}/localqueues"
            await self._admin.create(path, f"{VERSION}/LocalQueue", queue.name, spec={"clusterQueue": self._named(queue.name)})
        await eventually(lambda: self._are_active(queues.queues))
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                for job in await self._admin.names("jobs", "apis/batch/v1"):
                    await self._admin.delete("jobs", job, "apis/batch/v1", propagationPolicy="Background")
                for path in reversed(made):  # those still in use go when the last Workload does
                    await self._admin.call("DELETE", path)

    async def _are_active(self, queues: tuple[QueueSpec, ...]) -> bool:
        found = [await self._admin.call("GET", f"{KUEUE}/clusterqueues/{self._named(queue.name)}") for queue in queues]
        return all(_condition(queue, "Active") == "True" for queue in found)

    def _named(self, name: str) -> str:
        return f"{self._admin.namespace}-{name}"

    def _cohort(self, cohort: CohortSpec) -> dict[str, Any]:
        parent = {"parentName": self._named(cohort.parent)} if cohort.parent else {}
        return parent | {"resourceGroups": _groups(cohort.quotas, self._named("any"))}

    def _cluster_queue(self, queue: QueueSpec) -> dict[str, Any]:
        cohort = {"cohortName": self._named(queue.cohort)} if queue.cohort else {}
        return cohort | {
            "namespaceSelector": {},
            "queueingStrategy": "BestEffortFIFO",
            "preemption": _preemption(queue.preemption),
            "resourceGroups": _groups(queue.quotas, self._named("any")),
        }

    async def _do(self, step: Step) -> None:
        await _next_second()  # Kueue orders by times that hold whole seconds
        match step.does:
            case Submit() as asked:
                self._queue_of[asked.name] = asked.queue
                lanes = [asked.name] if asked.together else [f"{asked.name}-{rank}" for rank in range(asked.replicas)]
                for lane in lanes:
                    await self._submit(asked, lane)
            case End(name):
                for job in [job for job, (owner, _) in self._jobs.items() if owner == name]:
                    del self._jobs[job]
                    await self._admin.delete("jobs", job, "apis/batch/v1", propagationPolicy="Background")
            case other:
                raise AssertionError(f"Kueue has no {other}")

    async def _submit(self, asked: Submit, job: str) -> None:
        replicas = asked.replicas if asked.together else 1
        labels = {"kueue.x-k8s.io/queue-name": asked.queue, "kueue.x-k8s.io/priority-class": self._named(f"p{asked.priority}")}
        spec = {"suspend": True, "parallelism": replicas, "completions": replicas, "template": {"spec": _pod(asked.gpus)}}
        self._jobs[job] = (asked.name, asked.gpus)
        await self._admin.create(JOBS, "batch/v1/Job", job, metadata={"labels": labels}, spec=spec)

    async def _settle(self, step: Step, about: str) -> None:
        """Wait until it stands as told, let Kueue look at everything again, and see that it still does."""
        wanted = Standing(dict(step.holding), self._by_queue(step.waiting))
        last: list[Any] = [None]

        async def is_so() -> bool:
            last[0] = await self._standing()
            return bool(last[0] == wanted)

        try:
            await eventually(is_so, _SETTLED_WITHIN_S)
        except AssertionError:
            raise AssertionError(
                f"{about}\n  told: {wanted}\n  Kueue: {last[0]}\n  preempted: {await self._preempted()}"
            ) from None
        for _ in range(len(step.waiting) + 1):  # in a cycle Kueue looks at one of each queue
            await self._probe()
        stands, preempted = await self._standing(), await self._preempted()
        assert stands == wanted, f"{about}\n  told: {wanted}\n  Kueue, after a while: {stands}"
        assert preempted == dict(step.preempted), f"{about}\n  told: {dict(step.preempted)}\n  Kueue preempted: {preempted}"

    def _by_queue(self, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        queues = dict.fromkeys(self._queue_of[name] for name in names)
        return {queue: tuple(name for name in names if self._queue_of[name] == queue) for queue in queues}

    async def _workloads(self) -> dict[str, dict[str, Any]]:
        """Return Kueue's Workloads by the name of their Job."""
        items = (await self._admin.call("GET", WORKLOADS))["items"]
        owned = [(item["metadata"].get("ownerReferences"), item) for item in items]
        return {owners[0]["name"]: item for owners, item in owned if owners}

    async def _standing(self) -> Standing | None:
        """Return how it stands; None while Kueue has not looked at all there is."""
        workloads = await self._workloads()
        if workloads.keys() != self._jobs.keys():
            return None
        holding: dict[str, int] = {}
        for job, workload in workloads.items():
            name, gpus = self._jobs[job]
            reserved = _condition(workload, "QuotaReserved")
            if reserved is None or (reserved == "True" and _condition(workload, "Evicted") == "True"):
                return None
            if reserved == "True":
                count = sum(assigned["count"] for assigned in workload["status"]["admission"]["podSetAssignments"])
                holding[name] = holding.get(name, 0) + count * gpus
        waiting = await self._waiting(workloads)
        return None if waiting is None else Standing(holding, waiting)

    async def _waiting(self, workloads: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]] | None:
        """Return who waits in each queue by Kueue's own word, next first; a sweep stands where its first replica does.

        None while Kueue still names one that is gone.
        """
        job_of = {workload["metadata"]["name"]: job for job, workload in workloads.items()}
        waiting: dict[str, tuple[str, ...]] = {}
        for queue in self._story.queues.queues:
            path = f"{VISIBILITY}/clusterqueues/{self._named(queue.name)}/pendingworkloads"
            pending = [item["metadata"]["name"] for item in (await self._admin.call("GET", path))["items"]]
            if not job_of.keys() >= set(pending):
                return None
            names = dict.fromkeys(self._jobs[job_of[name]][0] for name in pending)
            waiting |= {queue.name: tuple(names)} if names else {}
        return waiting

    async def _preempted(self) -> dict[str, Rule]:
        """Return who has been preempted since this was last asked, and by which rule."""
        found: dict[str, Rule] = {}
        workloads = await self._workloads()
        for job, workload in ((job, workloads[job]) for job in self._jobs.keys() & workloads.keys()):
            for condition in workload.get("status", {}).get("conditions", ()):
                key = (job, condition["lastTransitionTime"])
                if condition["type"] == "Preempted" and condition["status"] == "True" and key not in self._seen_preempted:
                    self._seen_preempted.add(key)
                    found[self._jobs[job][0]] = RULES[condition["reason"]]
        return found

    async def _probe(self) -> None:
        """Let one through that has all it needs: Kueue has then been through one cycle more."""
        self._probes += 1
        name = f"{_PROBE}-{self._probes}"
        sets = [{"name": "main", "count": 1, "template": {"spec": _pod(1)}}]
        await self._admin.create(WORKLOADS, f"{VERSION}/Workload", name, spec={"queueName": _PROBE, "podSets": sets})

        async def is_admitted() -> bool:
            return _condition(await self._admin.call("GET", f"{WORKLOADS}/{name}"), "Admitted") == "True"

        await eventually(is_admitted)
        await self._admin.delete("workloads", name, f"apis/{VERSION}")


def _pod(gpus: int) -> dict[str, Any]:
    held = {GPU: str(gpus)}
    container = {"name": "c", "image": "localhost/pause:1", "resources": {"requests": held, "limits": held}}
    return {"schedulerName": "nobody", "restartPolicy": "Never", "containers": [container]}


def _condition(thing: Mapping[str, Any], kind: str) -> str | None:
    conditions = thing.get("status", {}).get("conditions", ())
    return next((condition["status"] for condition in conditions if condition["type"] == kind), None)


async def _next_second() -> None:
    begun = datetime.now(UTC).replace(microsecond=0)

    async def is_over() -> bool:
        return datetime.now(UTC).replace(microsecond=0) > begun

    await eventually(is_over)
