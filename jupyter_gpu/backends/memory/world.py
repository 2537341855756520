"""The place itself, which all its clients share: what there is, what time it is, and what happens next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import anyio

from jupyter_gpu.backends.base import PROTOCOL, Document
from jupyter_gpu.backends.memory.script import Script, ended_by, report_in
from jupyter_gpu.queueing import Claim, admit
from jupyter_gpu.schema import Kind, LogLine, Phase, Reason, ReplicaStatus, Stream, Workload, WorkloadSpec, WorkloadStatus

NODE = "memory-0"

Event = tuple[datetime, Callable[[], None]]
"""When something happens, and what."""


@dataclass
class Run:
    """One attempt at a Workload."""

    spec: WorkloadSpec
    attempt: int
    sequence: int
    created: datetime
    secrets: Mapping[str, str]
    phase: Phase = Phase.QUEUED
    reason: Reason | None = None
    position: int | None = None
    devices: list[tuple[str, ...]] = field(default_factory=list)
    """Ids per rank, for as long as it holds them."""
    admitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    stopping: Reason | None = None
    """Why it must end, once somebody wants that."""
    killed: datetime | None = None
    """When it will be killed, if it lets that happen."""
    said: int = 0
    log: list[LogLine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.script = Script.of(self.spec.command)

    def status(self) -> WorkloadStatus:
        """Return how it stands."""
        facts: dict[str, Any] = {"phase": self.phase, "reason": self.reason}
        node = NODE if self.admitted else None
        held = self.devices or [()] * self.spec.replicas
        return WorkloadStatus(
            id=self.spec.id,
            ready=self.phase is Phase.RUNNING,
            attempt=self.attempt,
            position=self.position,
            replicas=tuple(ReplicaStatus(rank=rank, node=node, devices=ids, **facts) for rank, ids in enumerate(held)),
            created=self.created,
            started=self.started,
            ended=self.ended,
            sequence=self.sequence,
            **facts,
        )

    def documents(self) -> tuple[Document, ...]:
        """Return what a place with documents would write for it."""
        spec = self.spec.model_dump(mode="json")
        workload = {"document": "workload", "protocol": PROTOCOL, "attempt": self.attempt, "spec": spec}
        secret = {"document": "secret", "protocol": PROTOCOL, "id": self.spec.id, "names": sorted(self.secrets)}
        return (workload, secret) if self.secrets else (workload,)


@dataclass
class Story:
    """All attempts at one id, the newest last, and who holds it."""

    owner: str
    runs: list[Run]
    unheld_since: datetime
    holder: str | None = None
    holds: int = 0

    @property
    def run(self) -> Run:
        """The newest attempt."""
        return self.runs[-1]

    def workload(self) -> Workload:
        """Return what the place shows of it."""
        return Workload(spec=self.run.spec, status=self.run.status())


class World:
    """A place of virtual time. All that happens is an `Event` of some Workload, and follows from how that stands."""

    def __init__(self, gpus: Mapping[str, int], start_s: float, now: datetime) -> None:
        self.capacity, self.start_s, self.now = dict(gpus), start_s, now
        self.stories: dict[str, Story] = {}
        self.changed = anyio.Event()
        self.clients = 0
        self._sequence = 0

    def new_run(self, spec: WorkloadSpec, secrets: Mapping[str, str]) -> Run:
        """Return the next attempt at a Workload, which `add` makes real."""
        story = self.stories.get(spec.id)
        return Run(spec, story.run.attempt + 1 if story else 1, self._sequence + 1, self.now, dict(secrets))

    def add(self, run: Run) -> None:
        """Put an attempt into its queue."""
        self._sequence = run.sequence
        story = self.stories.setdefault(run.spec.id, Story(run.spec.owner, [], self.now))
        story.runs.append(run)
        if not story.holder:
            story.unheld_since = self.now
        self._settle()

    def stop(self, run: Run, reason: Reason, grace_s: float) -> None:
        """Tell an attempt to end; the first reason stays."""
        if run.stopping or run.ended:
            return
        run.stopping = reason
        if run.started and run.script.ignores_term and grace_s > 0:
            run.killed = self.now + timedelta(seconds=grace_s)
            run.reason = Reason(code="end.stopping", message=f"it is ending: {reason.message}", facts={"grace_s": grace_s})
        else:
            self._end(run, ended_by("SIGTERM"))
        self._settle()

    def advance_to(self, when: datetime) -> None:
        """Let time pass and everything happen that is due by then."""
        while (event := self.next_event()) and event[0] <= when:
            self.now = max(self.now, event[0])
            event[1]()
            self._settle()
        self.now = max(self.now, when)

    def next_event(self) -> Event | None:
        """Return what happens next if nobody does anything."""
        events = (event for story in self.stories.values() for event in self._events(story))
        return min(events, key=lambda event: event[0], default=None)

    def holders(self) -> dict[str, Story]:
        """Return who holds each device that is held."""
        return {id: story for story in self.stories.values() for ids in story.run.devices for id in ids}

    def devices(self) -> dict[str, list[str]]:
        """Return the ids of all devices, by resource name."""
        return {resource: [f"{resource}-{number}" for number in range(count)] for resource, count in self.capacity.items()}

    def free(self) -> dict[str, list[str]]:
        """Return the ids of the devices that nobody holds, by resource name."""
        held = self.holders()
        return {resource: [id for id in ids if id not in held] for resource, ids in self.devices().items()}

    def _settle(self) -> None:
        """Admit what fits, and wake those who wait for a change."""
        waiting = {story.run.spec.id: story.run for story in self.stories.values() if story.run.phase is Phase.QUEUED}
        claims = [Claim.of(run.spec, run.sequence) for run in waiting.values()]
        admission = admit(claims, {resource: len(ids) for resource, ids in self.free().items()}, self.capacity)
        for id in admission.start:
            self._admit(waiting.pop(id))
        for id, run in waiting.items():
            run.position, run.reason = admission.positions[id], admission.reasons[id]
        self.changed.set()
        self.changed = anyio.Event()

    def _events(self, story: Story) -> Iterator[Event]:
        """Yield what may happen next to a Workload."""
        run, spec = story.run, story.run.spec
        if run.ended:
            yield run.ended + timedelta(seconds=spec.ttl_s), lambda: self._forget(spec.id)
        elif run.started:
            yield from self._running_events(run, run.started)
            if spec.kind is Kind.KERNEL and spec.orphan_running_after_s and not story.holder and not run.stopping:
                yield self._orphan(run, max(story.unheld_since, run.started), spec.orphan_running_after_s)
        elif run.admitted:
            late = Reason(code="start.timeout", message=f"it did not start within {spec.start_timeout_s:g} s")
            start: Event = (run.admitted + timedelta(seconds=self.start_s), lambda: self._begin(run))
            limit: Event = (run.admitted + timedelta(seconds=spec.start_timeout_s), lambda: self._end(run, late))
            yield min(start, limit, key=lambda event: event[0])
        elif spec.orphan_after_s is not None and not story.holder:
            yield self._orphan(run, story.unheld_since, spec.orphan_after_s)

    def _running_events(self, run: Run, started: datetime) -> Iterator[Event]:
        script, lines = run.script, len(run.script.lines({}))
        if run.said < lines:
            yield started + timedelta(seconds=run.said * script.pause_s), lambda: self._say(run, started)
        elif script.seconds < math.inf:
            yield started + timedelta(seconds=lines * script.pause_s + script.seconds), lambda: self._end(run, script.end())
        if run.killed:
            yield run.killed, lambda: self._end(run, ended_by("SIGKILL"))
        elif (limit := run.spec.max_runtime_s) is not None:
            late = Reason(code="end.max_runtime", message=f"it ran longer than its limit of {limit:g} s")
            yield started + timedelta(seconds=limit), lambda: self.stop(run, late, run.spec.grace_s)

    def _orphan(self, run: Run, since: datetime, after_s: float) -> Event:
        reason = Reason(code="end.orphaned", message=f"nobody was its client for {after_s:g} s")
        return since + timedelta(seconds=after_s), lambda: self.stop(run, reason, run.spec.grace_s)

    def _admit(self, run: Run) -> None:
        resources = run.spec.resources
        free = iter(self.free().get(resources.accelerator.resource, ()))
        run.devices = [tuple(next(free) for _ in range(resources.gpus)) for _ in range(run.spec.replicas)]
        run.phase, run.reason, run.position, run.admitted = Phase.STARTING, None, None, self.now

    def _begin(self, run: Run) -> None:
        run.phase, run.started = Phase.RUNNING, self.now
        for rank, ids in enumerate(run.devices):
            self._report(run, rank, report="started", devices=list(ids), node=NODE, pid=None)

    def _say(self, run: Run, started: datetime) -> None:
        """Let the replicas say all that is due by now."""
        lines = [run.script.lines(_variables(run.spec, ids)) for ids in run.devices]
        while run.said < len(lines[0]) and started + timedelta(seconds=run.said * run.script.pause_s) <= self.now:
            for rank in range(run.spec.replicas):
                stream, text = lines[rank][run.said]
                if stream is Stream.STDOUT and (report := report_in(text)) is not None:
                    self._report(run, rank, **report)
                else:
                    run.log.append(LogLine(time=self.now, replica=rank, attempt=run.attempt, stream=stream, text=text))
            run.said += 1

    def _report(self, run: Run, rank: int, **report: Any) -> None:
        run.log.append(LogLine(time=self.now, replica=rank, attempt=run.attempt, stream=Stream.REPORT, report=report))

    def _end(self, run: Run, program: Reason) -> None:
        """End an attempt: for the reason that somebody had, else as its program did."""
        reason = run.stopping or program
        if run.started:
            outcome = {key: program.facts.get(key) for key in ("exit_code", "signal")}
            for rank in range(run.spec.replicas):
                self._report(run, rank, report="end", code=reason.code, message=reason.message, facts=reason.facts, **outcome)
        run.phase, run.reason, run.ended = reason.final_phase, reason, self.now
        run.position, run.devices, run.secrets = None, [], {}

    def _forget(self, id: str) -> None:
        del self.stories[id]


def _variables(spec: WorkloadSpec, ids: tuple[str, ...]) -> dict[str, str]:
    visible = ",".join(ids)
    return {**spec.environment.variables, spec.resources.accelerator.visible_variable: visible, "JUPYTER_GPU_DEVICES": visible}
