"""One client's view of a place of virtual time."""
# ruff: noqa: D102 - the contract's methods are documented in base.py

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from anyio.lowlevel import checkpoint
from pydantic import ValidationError

from jupyter_gpu.backends.base import Address, Backend, Document
from jupyter_gpu.backends.memory.describing import describe
from jupyter_gpu.backends.memory.devices import Devices
from jupyter_gpu.backends.memory.runs import Story
from jupyter_gpu.backends.memory.world import World
from jupyter_gpu.errors import ConflictError, InvalidRequestError, NotFoundError, UnsupportedError
from jupyter_gpu.queueing import check_quota
from jupyter_gpu.schema import (
    NVIDIA_GPU,
    Changes,
    Claim,
    Event,
    Kind,
    LogLine,
    Place,
    QueueSet,
    Reason,
    Selector,
    Usage,
    Workload,
    WorkloadSpec,
)

_CANCELLED = Reason(code="end.cancelled", message="it was cancelled")


class MemoryBackend(Backend):
    """A place of virtual time.

    Time stands still until `advance` or `advance_to_next` moves it, or `tend` tells a later one. A program is a script, a JSON
    object in the last word of its command (see `Script`); any other command runs until somebody ends it. The Keeper is always
    there: what fits is admitted, and what must end is ended, at its very moment.

    Args:
        name: the place's name.
        gpus: devices by resource name; a number counts nvidia.com/gpu. Two, where ``models`` names none.
        models: devices of nvidia.com/gpu by their model, beside those of ``gpus``, which are called emulated.
        start_s: virtual seconds that a Workload is STARTING.
        now: where time begins.
    """

    def __init__(
        self,
        name: str = "memory",
        *,
        gpus: Mapping[str, int] | int | None = None,
        models: Mapping[str, int] | None = None,
        start_s: float = 1.0,
        now: datetime = datetime(2030, 1, 1, tzinfo=UTC),
    ) -> None:
        if gpus is None:
            gpus = 0 if models else 2
        counts = {NVIDIA_GPU.resource: gpus} if isinstance(gpus, int) else gpus
        self._join(name, World(Devices(counts, models or {}), start_s, now), "me")

    def _join(self, name: str, world: World, owner: str) -> None:
        self.name, self._world, self._owner = name, world, owner
        world.clients += 1
        self._client = f"client {world.clients} of {name}"

    def client(self, *, owner: str | None = None) -> MemoryBackend:
        """Return another client of the same place, as another process would be; with ``owner``, of another account."""
        other = MemoryBackend.__new__(MemoryBackend)
        other._join(self.name, self._world, owner or self._owner)
        return other

    def copy(self) -> MemoryBackend:
        """Return a place that stands as this one does and goes on by itself, to see what would be; it has no clients yet."""
        other = MemoryBackend.__new__(MemoryBackend)
        other._join(self.name, self._world.copy(), self._owner)
        return other

    def die(self) -> None:
        """End what this client holds, as its process' death would."""
        for story in self._world.stories.values():
            if story.holder == self._client:
                self._let_go(story, story.holds)

    @property
    def now(self) -> datetime:
        """The place's time."""
        return self._world.now

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self._world.advance_to(self.now + timedelta(seconds=seconds))

    def advance_to_next(self) -> datetime | None:
        """Let time pass until the next thing happens, and return when that was; None if nothing will."""
        moment = self._world.next_moment()
        if moment:
            self._world.advance_to(moment[0])
        return moment[0] if moment else None

    async def describe(self) -> Place:
        await checkpoint()
        return describe(self.name, self._world, self._owner)

    async def watch(self, selector: Selector = Selector()) -> AsyncIterator[Changes]:  # noqa: B008 - frozen
        known: dict[str, Workload] | None = None
        while True:
            await checkpoint()
            changed = self._world.changed
            mine = (story for story in self._world.stories.values() if story.owner == self._owner)
            now = {story.run.spec.id: story.workload() for story in mine if selector.matches(story.run.spec)}
            if known is None:
                yield Changes(complete=True, workloads=tuple(now.values()))
            else:
                news = tuple(workload for id, workload in now.items() if known.get(id) != workload)
                removed = tuple(id for id in known if id not in now)
                if news or removed:
                    yield Changes(complete=False, workloads=news, removed=removed)
            known = now
            await changed.wait()

    async def submit(
        self, spec: WorkloadSpec, *, secrets: Mapping[str, str] | None = None, dry_run: bool = False
    ) -> tuple[Document, ...]:
        await checkpoint()
        spec = spec.model_copy(update={"owner": self._owner})
        story = self._world.stories.get(spec.id)
        if story and story.owner != self._owner:
            raise ConflictError(f"{spec.id!r} belongs to {story.owner}; choose another id")
        if story and not story.run.ended:
            if story.run.asked == spec:
                return story.run.documents()
            raise ConflictError(f"{spec.id!r} is {story.run.phase} with other content; cancel it first, or choose another id")
        world = self._world
        check_quota(Claim.of(spec, 0), world.queues, world.devices.stocks(()), self.name)
        run = self._world.new_run(spec, secrets or {})
        documents = run.documents()
        if not dry_run:
            self._world.add(run)
        return documents

    async def cancel(self, id: str, *, reason: Reason | None = None, grace_s: float | None = None) -> None:
        await checkpoint()
        run = self._mine(id).run
        self._world.stop(run, reason or _CANCELLED, run.spec.grace_s if grace_s is None else grace_s)

    async def logs(
        self,
        id: str,
        *,
        replica: int | None = None,
        attempt: int | None = None,
        since: datetime | None = None,
        follow: bool = False,
    ) -> AsyncIterator[LogLine]:
        story = self._mine(id)
        if attempt is not None and attempt not in range(1, story.run.attempt + 1):
            raise NotFoundError(f"{id!r} has no attempt {attempt}; the newest is {story.run.attempt}")
        tries = story.tries(attempt)
        run = next(run for run in reversed(story.runs) if run.first <= tries[0])
        if replica is not None and replica not in range(run.spec.replicas):
            raise NotFoundError(f"{id!r} has no replica {replica}; it has {run.spec.replicas}, counted from 0")
        shown = 0
        while True:
            await checkpoint()
            changed, lines, over = self._world.changed, story.log[shown:], run.over(tries)
            for line in lines:
                if line.attempt in tries and replica in (None, line.replica) and (since is None or line.time >= since):
                    yield line
            shown += len(lines)
            if over or not follow:
                return
            await changed.wait()

    @asynccontextmanager
    async def open_port(self, id: str, *, replica: int = 0, port: str) -> AsyncIterator[Address]:
        await checkpoint()
        self._mine(id)
        raise UnsupportedError(f"{self.name} has no ports: nothing really runs there")
        yield  # makes it a generator

    @asynccontextmanager
    async def hold(self, id: str) -> AsyncIterator[None]:
        await checkpoint()
        story = self._mine(id)
        if story.holder not in (None, self._client):
            raise ConflictError(f"{id!r} is held by {story.holder}")
        story.holder, story.holds = self._client, story.holds + 1
        try:
            yield
        finally:
            if story.holder == self._client:
                self._let_go(story, 1)

    def _let_go(self, story: Story, holds: int) -> None:
        story.holds -= holds
        if story.holds == 0:
            story.holder, story.unheld_since = None, self._world.now

    async def connection(self, id: str) -> Mapping[str, str]:
        await checkpoint()
        story = self._world.stories.get(id)
        if story and story.owner != self._owner:
            raise ConflictError(f"{id!r} belongs to {story.owner}")
        if story is None or story.run.spec.kind is not Kind.KERNEL:
            raise NotFoundError(f"there is no kernel {id!r} at {self.name}")
        if story.run.ended:
            raise NotFoundError(f"the kernel {id!r} has ended, and its keys are gone")
        return dict(story.run.secrets)

    async def tend(self, now: datetime) -> datetime | None:
        await checkpoint()
        self._world.advance_to(now)
        moment = self._world.next_moment()
        return moment[0] if moment else None

    async def reprioritise(self, id: str, priority: int) -> None:
        await checkpoint()
        run = self._mine(id).run
        if run.ended:
            raise ConflictError(f"{id!r} has ended ({run.phase}); its priority can't be changed")
        try:
            run.spec = WorkloadSpec.model_validate(run.spec.model_dump() | {"priority": priority})
        except ValidationError as error:
            raise InvalidRequestError(f"{priority} is no priority: {error.errors()[0]['msg']}") from error
        self._world.settle()

    async def story(self, id: str) -> tuple[Event, ...]:
        await checkpoint()
        return tuple(self._mine(id).events)

    async def usage(self, since: datetime | None = None) -> tuple[Usage, ...]:
        await checkpoint()
        world = self._world
        used = world.past + [one for story in world.stories.values() for one in story.usage(world.now)]
        mine = [one for one in used if one.owner == self._owner and (since is None or one.ended is None or one.ended > since)]
        return tuple(sorted(mine, key=lambda one: one.started))

    async def apply_queues(self, queues: QueueSet, *, dry_run: bool = False) -> None:
        await checkpoint()
        self._world.apply(queues, dry_run=dry_run)

    def _mine(self, id: str) -> Story:
        story = self._world.stories.get(id)
        if story is None or story.owner != self._owner:
            raise NotFoundError(f"there is no workload {id!r} at {self.name}")
        return story
