"""The place itself, which all its clients share: what there is, what time it is, and what happens next."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice

import anyio

from jupyter_gpu.backends.memory.demand import Clock, claim_of, holdings_of
from jupyter_gpu.backends.memory.devices import Devices
from jupyter_gpu.backends.memory.parts import Part, Replica, Tenure
from jupyter_gpu.backends.memory.runs import Run, Story
from jupyter_gpu.backends.memory.script import ended_by
from jupyter_gpu.backends.memory.sharing import checked
from jupyter_gpu.backends.memory.speaking import report_end, report_start, say
from jupyter_gpu.queueing import State, decide
from jupyter_gpu.queueing.retrying import PREEMPTED, tries_again
from jupyter_gpu.schema import Event, Kind, Phase, QueueSet, Reason, Usage, WorkloadSpec

_MOST_ROUNDS = 1000

Moment = tuple[datetime, Callable[[], None]]
"""When something happens, and what."""


class World:
    """A place of virtual time. All that happens is a `Moment` of some Workload, and follows from how that stands."""

    def __init__(self, devices: Devices, start_s: float, now: datetime) -> None:
        self.devices, self.start_s, self.now = devices, start_s, now
        self.clock = Clock(now)
        self.queues = QueueSet.default(devices.capacity)
        self.stories: dict[str, Story] = {}
        self.changed = anyio.Event()
        self.clients = 0
        self.past: list[Usage] = []
        """Of those whose stories are forgotten."""
        self._sequence = 0
        self._look_again_s: float | None = None

    def copy(self) -> World:
        """Return one that stands the same, and that nobody waits for yet."""
        other = World(self.devices, self.start_s, self.now)
        kept = {name: part for name, part in vars(self).items() if name not in ("devices", "changed")}
        vars(other).update(pickle.loads(pickle.dumps(kept)))  # much quicker than copy.deepcopy
        return other

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
        story.note(self.now)
        self.settle()

    def stop(self, run: Run, reason: Reason, grace_s: float) -> None:
        """Tell all of a Workload to end; the first reason stays."""
        if run.stopping or run.ended:
            return
        run.stopping = reason
        for part in run.parts:
            self._stop(run, part, reason, grace_s)
        self.settle()

    def apply(self, queues: QueueSet, *, dry_run: bool) -> None:
        """Set the queues, or only look whether that could be."""
        queues = checked(queues, self.devices.capacity, (story.run for story in self.stories.values()))
        if not dry_run:
            self.queues = queues
            self.settle()

    def advance_to(self, when: datetime) -> None:
        """Let time pass and everything happen that is due by then."""
        while (moment := self.next_moment()) and moment[0] <= when:
            self.now = max(self.now, moment[0])
            moment[1]()
            self.settle()
        self.now = max(self.now, when)

    def next_moment(self) -> Moment | None:
        """Return what happens next if nobody does anything."""
        moments = [moment for story in self.stories.values() for moment in self._moments(story)]
        if self._look_again_s is not None and self._look_again_s > self.clock.seconds(self.now):
            moments.append((self.now + timedelta(seconds=self._look_again_s - self.clock.seconds(self.now)), _nothing))
        return min(moments, key=lambda moment: moment[0], default=None)

    def holders(self) -> dict[str, Story]:
        """Return who holds each device that is held, by its id."""
        return {id: story for story in self.stories.values() for part in story.run.parts for id in part.held}

    def state(self) -> State:
        """Return what a decision is made from."""
        runs = [story.run for story in self.stories.values() if not story.run.ended]
        return State(
            claims=[claim_of(run, self.clock) for run in runs if run.waiting],
            holdings=[holding for run in runs for holding in holdings_of(run, self.clock, self.devices)],
            stocks=self.devices.stocks(self.holders()),
            queues=self.queues,
            now_s=self.clock.seconds(self.now),
        )

    def settle(self) -> None:
        """Admit what fits, tell those who must yield, and wake those who wait for a change."""
        for _ in range(_MOST_ROUNDS):
            if not self._decide():
                break
        else:
            raise RuntimeError(f"those who yield and those who start never come to rest: {self.state()}")
        self.changed.set()
        self.changed = anyio.Event()

    def _decide(self) -> bool:
        """Do what the queue decides; return whether somebody yielded at once, so that more may fit."""
        decision = decide(self.state())
        self._look_again_s = decision.look_again_s
        for id, count in decision.starts.items():
            run = self.stories[id].run
            resource = run.spec.resources.accelerator.resource
            devices = iter(self.devices.choose(resource, decision.models.get(id, {}), self.holders()))
            for part in run.waiting[: None if run.together else count]:
                self._admit(run, part, devices)
        gone = False
        for yielding in decision.yielding:
            run = self.stories[yielding.holding.id].run
            part = next(part for part in run.parts if yielding.holding.rank in (None, part.ranks[0]))
            self._stop(run, part, yielding.reason, run.spec.grace_s)
            gone = gone or not part.active
        for story in self.stories.values():
            run = story.run
            run.position = decision.positions.get(run.spec.id) if not run.ended else None
            self._explain(run, decision.reasons.get(run.spec.id))
            story.note(self.now)
        return gone

    def _explain(self, run: Run, waits: Reason | None) -> None:
        """Say why a Workload and its parts stand as they do."""
        if run.ended:
            return
        run.called = waits is not None and waits.code == "queue.preempting"
        for part in run.waiting:
            part.reason = waits
        active = [part for part in run.parts if part.active]
        if not active:
            run.reason = waits
            return
        stopping = [part.reason for part in active if part.reason]
        run.reason = stopping[0] if len(stopping) == len(active) else None

    def _moments(self, story: Story) -> Iterator[Moment]:
        """Yield what may happen next to a Workload."""
        run, spec = story.run, story.run.spec
        if run.ended:
            yield run.ended + timedelta(seconds=spec.ttl_s), lambda: self._forget(story)
            return
        for part in run.parts:
            yield from self._moments_of(run, part)
        if story.holder or run.stopping:
            return
        if spec.orphan_after_s is not None and run.phase is Phase.QUEUED:
            yield self._orphan(run, max(story.unheld_since, *(part.since for part in run.waiting)), spec.orphan_after_s)
        elif spec.orphan_running_after_s and run.phase is Phase.RUNNING and spec.kind is Kind.KERNEL:
            started = min(part.started for part in run.parts if part.started)
            yield self._orphan(run, max(story.unheld_since, started), spec.orphan_running_after_s)

    def _moments_of(self, run: Run, part: Part) -> Iterator[Moment]:
        if part.phase is Phase.STARTING and part.admitted:
            limit_s = run.spec.start_timeout_s
            late = Reason(code="start.timeout", message=f"it did not start within {limit_s:g} s")
            start: Moment = (part.admitted + timedelta(seconds=self.start_s), lambda: self._begin(run, part))
            limit: Moment = (part.admitted + timedelta(seconds=limit_s), lambda: self._give_up(run, part, late))
            yield min(start, limit, key=lambda moment: moment[0])
        elif part.phase is Phase.RUNNING and part.started:
            for replica in part.alive:
                yield from self._moments_of_program(run, part, replica, part.started)
            if part.killed:
                yield part.killed, lambda: self._give_up(run, part, ended_by("SIGKILL"))
            elif (left_s := part.left_s(run.spec.max_runtime_s)) is not None and not part.stopping:
                ends = part.started + timedelta(seconds=left_s)
                yield ends, lambda: self._stop(run, part, _too_long(run.spec), run.spec.grace_s)

    def _moments_of_program(self, run: Run, part: Part, replica: Replica, started: datetime) -> Iterator[Moment]:
        script, lines = replica.script, len(replica.script.lines({}))
        if replica.said < lines:
            due = started + timedelta(seconds=replica.said * script.pause_s)
            yield due, lambda: say(self.stories[run.spec.id], part, replica, started, self.now)
        elif script.seconds < math.inf:
            ends = started + timedelta(seconds=lines * script.pause_s + script.seconds)
            yield ends, lambda: self._program_ends(run, part, replica)

    def _orphan(self, run: Run, since: datetime, after_s: float) -> Moment:
        reason = Reason(code="end.orphaned", message=f"nobody was its client for {after_s:g} s")
        return since + timedelta(seconds=after_s), lambda: self.stop(run, reason, run.spec.grace_s)

    def _admit(self, run: Run, part: Part, devices: Iterator[str]) -> None:
        gpus = run.spec.resources.gpus
        for replica in part.replicas:
            replica.devices = tuple(islice(devices, gpus))
            assert len(replica.devices) == gpus, f"{run.spec.id!r} was to start with devices that are not free"
        part.phase, part.reason, part.admitted = Phase.STARTING, None, self.now
        part.tenures.append(Tenure(part.attempt, self.now, gpus * len(part.ranks)))

    def _begin(self, run: Run, part: Part) -> None:
        part.phase, part.started, part.tenures[-1].phase = Phase.RUNNING, self.now, Phase.RUNNING
        report_start(self.stories[run.spec.id], part, self.now)

    def _program_ends(self, run: Run, part: Part, replica: Replica) -> None:
        """End a replica as its program does; of a gang, the others are ended when that is a failure."""
        end = replica.script.end()
        if run.asked.replicas > 1 and end.final_phase is Phase.FAILED:
            words = f"replica {replica.rank}: {end.message}"
            end = end.model_copy(update={"message": words, "facts": {**end.facts, "rank": replica.rank}})
        self._close(run, part, replica, end)
        if not part.alive:
            self._finish(run, part, end)
        elif end.final_phase is Phase.FAILED and not part.stopping:
            self._stop(run, part, end, run.spec.grace_s)

    def _stop(self, run: Run, part: Part, reason: Reason, grace_s: float) -> None:
        """Tell a part to end; the first reason stays, unless it would only be QUEUED again by that."""
        if part.ended or (part.stopping and not tries_again(run.spec, part.stopping, part.failures)):
            return
        part.stopping = reason
        for replica in part.alive:
            if not (part.started and replica.script.ignores_term and grace_s > 0):
                self._close(run, part, replica, ended_by("SIGTERM"))
        if not part.alive:
            self._finish(run, part, reason)
            return
        kill = self.now + timedelta(seconds=grace_s)
        part.killed = min(part.killed or kill, kill)
        facts = {**reason.facts, "because": reason.code, "grace_s": grace_s}
        part.reason = Reason(code="end.stopping", message=f"it is ending: {reason.message}", facts=facts)
        if not run.together:
            self._note(run, part, part.reason)

    def _give_up(self, run: Run, part: Part, how: Reason) -> None:
        """End what is left of a part at once."""
        for replica in part.alive:
            self._close(run, part, replica, how)
        self._finish(run, part, how)

    def _close(self, run: Run, part: Part, replica: Replica, program: Reason) -> None:
        """End a replica: for the reason that somebody had, else as its program did."""
        reason = part.stopping or program
        replica.reason = reason
        if part.started:
            report_end(self.stories[run.spec.id], part, replica, self.now, reason, program)

    def _finish(self, run: Run, part: Part, how: Reason) -> None:
        """End an attempt at a part, and queue the next one where there is one."""
        reason = part.stopping or how
        if part.tenures and part.tenures[-1].attempt == part.attempt:
            part.tenures[-1].ended, part.tenures[-1].phase = self.now, reason.final_phase
        if part.started:
            part.ran_s += (self.now - part.started).total_seconds()
        if run.stopping is None and tries_again(run.spec, reason, part.failures):
            if part.left_s(run.spec.max_runtime_s) != 0:
                part.failures += reason.code != PREEMPTED
                self._queue_again(run, part, reason)
                return
            reason = _too_long(run.spec) if reason.code == PREEMPTED else reason
        part.phase, part.reason, part.ended = reason.final_phase, reason, self.now
        if all(part.ended for part in run.parts):
            run.reason, run.ended, run.position, run.secrets = run.outcome(), self.now, None, {}

    def _queue_again(self, run: Run, part: Part, reason: Reason) -> None:
        part.phase = reason.final_phase
        self._note(run, part, reason)
        part.queue_again(self.now)
        run.reason = None
        self.stories[run.spec.id].note(self.now)

    def _note(self, run: Run, part: Part, reason: Reason) -> None:
        """Write down what is news of a part, though its Workload may stand as before."""
        if not run.together:
            reason = reason.model_copy(update={"facts": {**reason.facts, "rank": part.ranks[0]}})
        event = Event(time=self.now, attempt=part.attempt, phase=part.phase, reason=reason)
        self.stories[run.spec.id].events.append(event)

    def _forget(self, story: Story) -> None:
        self.past += story.usage(self.now)
        del self.stories[story.run.spec.id]


def _nothing() -> None:
    """Let the queue be looked at again, which every moment does."""


def _too_long(spec: WorkloadSpec) -> Reason:
    return Reason(code="end.max_runtime", message=f"it ran longer than its limit of {spec.max_runtime_s:g} s")
