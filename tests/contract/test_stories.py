"""The scheduling stories of `tests/stories.py`, played at a place of virtual time: what it decides is what the table says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.schema import Start
from tests.builders import a_workload, shown, status_of
from tests.stories import STORIES, End, Pass, Rule, Step, Story, Submit

FOREVER = ("train",)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
async def test_a_story_goes_as_the_table_says(story: Story) -> None:
    place = MemoryBackend(gpus=story.gpus)
    await place.apply_queues(story.queues)
    for number, step in enumerate(story.steps):
        before = await preempted(place)
        await do(place, step)
        where = f"after step {number}, {step.does}"
        assert await holding(place) == dict(step.holding), where
        assert await waiting(place) == by_queue(await queues_of(place), step.waiting), where
        assert {name: rules[-1] for name, rules in (await preempted(place)).items() if rules != before.get(name)} == dict(
            step.preempted
        ), where


async def do(place: MemoryBackend, step: Step) -> None:
    """Let a step happen, and a moment pass."""
    match step.does:
        case Submit(name, queue, gpus, priority, replicas, together):
            start = Start.TOGETHER if together else Start.AS_THEY_FIT
            spec = a_workload(name, gpus=gpus, queue=queue, priority=priority, replicas=replicas, start=start, command=FOREVER)
            await place.submit(spec)
        case End(name):
            await place.cancel(name)
        case Pass(seconds):
            place.advance(seconds)
    place.advance(0.001)  # so that nobody is admitted at the same moment as in the step before


async def holding(place: MemoryBackend) -> dict[str, int]:
    """Return the devices by who holds them."""
    return dict(Counter(device.holder for device in (await place.describe()).devices if device.holder))


async def queues_of(place: MemoryBackend) -> dict[str, str]:
    return {id: workload.spec.queue for id, workload in (await shown(place)).items()}


async def waiting(place: MemoryBackend) -> dict[str, list[str]]:
    """Return who has something left to start, by queue; the place in line is what each is told."""
    claims = (await place.describe()).claims
    found = by_queue(await queues_of(place), [claim.id for claim in claims])
    for names in found.values():
        positions = [position for name in names if (position := (await status_of(place, name)).position)]
        assert positions == list(range(1, len(positions) + 1))
    return found


def by_queue(queues: dict[str, str], names: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(queues[name], []).append(name)
    return found


async def preempted(place: MemoryBackend) -> dict[str, list[Rule]]:
    """Return by which rules each had to yield so far."""
    found: dict[str, list[Rule]] = {}
    for id in await shown(place):
        reasons = [event.reason for event in await place.story(id) if event.reason and event.reason.code == "end.preempted"]
        if reasons:
            found[id] = [Rule(reason.facts["rule"]) for reason in reasons]
    return found
