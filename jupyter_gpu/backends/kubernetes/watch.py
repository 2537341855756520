"""One reflector per backend: it lists and then watches our Jobs and pods, and shows any number of readers what changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from jupyter_gpu.backends.kubernetes.attempts import Attempt, Thing
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.mirror import Mirror
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.backends.kubernetes.phases import Sizes, workload_of
from jupyter_gpu.backends.kubernetes.tasks import Tasks
from jupyter_gpu.errors import NotAllowedError
from jupyter_gpu.schema import Changes, Selector, Workload

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_WARNINGS_KEPT = 2000
_TELLING = "Failed to pull image"  # of several warnings with the reason "Failed" the one with the cause
_BREATH = 200  # so many objects are worked through before others get the event loop


class Reflector:
    """What is known of an account's Workloads in the namespace, and who reads it."""

    def __init__(self, client: Client, owner: str, sizes: Callable[[], Sizes | None]) -> None:
        self._sizes = sizes
        self._tasks = Tasks()
        self._readers: set[_Reader] = set()
        self._jobs: dict[str, dict[int, str]] = {}
        self._pods: dict[tuple[str, int], set[str]] = {}
        self._trouble: dict[str, dict[str, str]] = {}
        self._attempts: dict[str, dict[int, Attempt]] = {}  # made of the above, until something changes
        self._shown: dict[str, Workload | None] = {}
        mine = {"labelSelector": labels.selector(owner)}
        self.jobs = Mirror(client, Objects.JOBS, mine, _trim_job, self._job_changed)
        self.pods = Mirror(client, Objects.PODS, mine, _trim_pod, self._pod_changed)
        self.events = Mirror(client, Objects.EVENTS, {"fieldSelector": "type=Warning"}, _trim_event, self._event_changed)
        for mirror in (self.jobs, self.pods):
            mirror.on_relist = self._relisted

    async def start(self) -> None:
        """Start, and return when everything has been listed.

        Raises:
            JupyterGpuError: the first list failed. That events can't be read is no failure: less is told then.
        """
        for mirror in (self.jobs, self.pods, self.events):
            self._tasks.start(mirror.run())
        for mirror in (self.jobs, self.pods, self.events):
            await mirror.synced.wait()
            if mirror.error and not (mirror is self.events and isinstance(mirror.error, NotAllowedError)):
                raise mirror.error

    async def aclose(self) -> None:
        """End the watches; readers wait for ever after."""
        await self._tasks.aclose()

    def observe(self, job: Thing) -> None:
        """Take a Job that we have just written, so that who reads next sees it."""
        self.jobs.expect(job)

    def attempts(self, workload: str) -> list[Attempt]:
        """Return all attempts at a Workload that this code can read, by its object name; the newest last."""
        return [
            attempt for number in sorted(self._jobs.get(workload, ())) if (attempt := self._attempt(workload, number)).is_readable
        ]

    def newest(self, workload: str) -> Attempt | None:
        """Return the newest attempt at a Workload, by its object name."""
        numbers = self._jobs.get(workload)
        return self._attempt(workload, max(numbers)) if numbers else None

    def attempt(self, workload: str, number: int) -> Attempt | None:
        """Return one attempt at a Workload."""
        return self._attempt(workload, number) if number in self._jobs.get(workload, ()) else None

    def _attempt(self, workload: str, number: int) -> Attempt:
        known = self._attempts.setdefault(workload, {})
        if number not in known:
            known[number] = self._made(workload, number)
        return known[number]

    def _made(self, workload: str, number: int) -> Attempt:
        job = self.jobs.objects[self._jobs[workload][number]]
        pods = tuple(self.pods.objects[name] for name in self._pods.get((workload, number), ()))
        return self.with_trouble(Attempt(job, pods))

    def with_trouble(self, attempt: Attempt) -> Attempt:
        """Return an attempt with the warnings about it that have been seen."""
        uids = [attempt.uid, *(pod["metadata"]["uid"] for pod in attempt.pods)]
        return Attempt(attempt.job, attempt.pods, {uid: self._trouble[uid] for uid in uids if uid in self._trouble})

    def workload(self, name: str) -> Workload | None:
        """Return a Workload as it is now, by its object name; None if there is none (or one that this code can't read)."""
        if name not in self._shown:
            attempt = self.newest(name)
            self._shown[name] = workload_of(attempt, self._sizes()) if attempt and attempt.is_readable else None
        return self._shown[name]

    async def read(self, selector: Selector) -> AsyncGenerator[Changes]:
        """Show the Workloads as `Backend.watch` promises."""
        reader = _Reader(self, selector)
        self._readers.add(reader)
        try:
            while True:
                if changes := await reader.step():
                    yield changes
        finally:
            self._readers.discard(reader)

    def names(self) -> Iterable[str]:
        """Return the object names of all Workloads."""
        return tuple(self._jobs)

    def _job_changed(self, job: Thing) -> None:
        if not (key := labels.workload_of(job)):
            return
        workload, number = key
        name = job["metadata"]["name"]
        numbers = self._jobs.setdefault(workload, {})
        if name in self.jobs.objects:
            numbers[number] = name
        else:
            numbers.pop(number, None)
            self._trouble.pop(job["metadata"]["uid"], None)
        if not numbers:
            del self._jobs[workload]
        self._touch(workload)

    def _pod_changed(self, pod: Thing) -> None:
        if not (key := labels.workload_of(pod)):
            return
        name, names = pod["metadata"]["name"], self._pods.setdefault(key, set())
        if name in self.pods.objects:
            names.add(name)
        else:
            names.discard(name)
            self._trouble.pop(pod["metadata"]["uid"], None)
        if not names:
            del self._pods[key]
        self._touch(key[0])

    def _event_changed(self, event: Thing) -> None:
        if event["metadata"]["name"] not in self.events.objects:
            return  # it was only forgotten
        about, cause, words = event.get("involvedObject") or {}, event.get("reason", ""), event.get("message", "")
        trouble = self._trouble.setdefault(about.get("uid", ""), {})
        if cause not in trouble or not trouble[cause].startswith(_TELLING) or words.startswith(_TELLING):
            trouble[cause] = words
        if len(self._trouble) > _WARNINGS_KEPT:
            self._trouble.pop(next(iter(self._trouble)))
        for thing in (self.jobs.objects.get(about.get("name", "")), self.pods.objects.get(about.get("name", ""))):
            if thing and (key := labels.workload_of(thing)):
                self._touch(key[0])

    def _touch(self, workload: str) -> None:
        self._shown.pop(workload, None)
        self._attempts.pop(workload, None)
        for reader in self._readers:
            reader.touch(workload)

    def _relisted(self) -> None:
        for reader in self._readers:
            reader.start_again()


class _Reader:
    """One reader of a reflector: what it has been shown, and what has changed since."""

    def __init__(self, reflector: Reflector, selector: Selector) -> None:
        self._reflector, self._selector = reflector, selector
        self._known: dict[str, Workload] = {}
        self._changed: set[str] = set()
        self._whole = True
        self._news = anyio.Event()
        self._news.set()

    def touch(self, workload: str) -> None:
        """Note that something about a Workload has changed."""
        self._changed.add(workload)
        self._news.set()

    def start_again(self) -> None:
        """Let the next step be a complete one."""
        self._whole = True
        self._news.set()

    async def step(self) -> Changes | None:
        """Wait for news, and return them; None if they change nothing that this reader sees."""
        await self._news.wait()
        self._news = anyio.Event()
        whole, self._whole = self._whole, False
        names = self._reflector.names() if whole else tuple(self._changed)
        self._changed.clear()
        seen = await self._look(names)
        if whole:
            self._known = {name: workload for name, workload in seen.items() if workload}
            return Changes(complete=True, workloads=tuple(self._known.values()))
        news = {name: workload for name, workload in seen.items() if workload and self._known.get(name) != workload}
        gone = [self._known.pop(name).spec.id for name, workload in seen.items() if not workload and name in self._known]
        self._known.update(news)
        return Changes(complete=False, workloads=tuple(news.values()), removed=tuple(gone)) if news or gone else None

    async def _look(self, names: Iterable[str]) -> dict[str, Workload | None]:
        seen: dict[str, Workload | None] = {}
        for count, name in enumerate(names):
            if count % _BREATH == _BREATH - 1:
                await checkpoint()
            workload = self._reflector.workload(name)
            seen[name] = workload if workload and self._selector.matches(workload.spec) else None
        return seen


def _some(thing: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: thing[key] for key in keys if key in thing}


def _trim_metadata(thing: Thing) -> dict[str, Any]:
    """Keep of an object's metadata what is looked at, for thousands of them are held."""
    metadata = thing["metadata"]
    ours = {key: value for key, value in (metadata.get("annotations") or {}).items() if key.startswith("jupyter-gpu/")}
    rank = _some(metadata.get("annotations") or {}, labels.RANK)
    kept = _some(metadata, "name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
    return kept | {"labels": _some(metadata.get("labels") or {}, labels.WORKLOAD, labels.ATTEMPT), "annotations": ours | rank}


def _trim_conditions(status: Thing, *kinds: str) -> list[dict[str, Any]]:
    kept = ("type", "status", "reason", "message", "lastTransitionTime")
    return [_some(condition, *kept) for condition in status.get("conditions") or () if condition["type"] in kinds]


def _trim_job(job: Thing) -> Thing:
    conditions = _trim_conditions(job.get("status") or {}, "Complete", "Failed", "Suspended")
    return {"metadata": _trim_metadata(job), "spec": _some(job["spec"], "suspend"), "status": {"conditions": conditions}}


def _trim_pod(pod: Thing) -> Thing:
    status, spec = pod.get("status") or {}, _some(pod["spec"], "nodeName", "activeDeadlineSeconds")
    kept = _some(status, "phase", "message", "reason", "podIP")
    kept["conditions"] = _trim_conditions(status, "PodScheduled", "Ready", "DisruptionTarget")
    kept["containerStatuses"] = [_some(container, "state") for container in status.get("containerStatuses") or ()]
    images = [_some(container, "image") for container in pod["spec"]["containers"]]
    return {"metadata": _trim_metadata(pod), "spec": spec | {"containers": images}, "status": kept}


def _trim_event(event: Thing) -> Thing:
    kept = {"involvedObject": _some(event.get("involvedObject") or {}, "name", "uid"), **_some(event, "reason", "message")}
    return {"metadata": _some(event["metadata"], "name", "uid", "resourceVersion"), **kept}
