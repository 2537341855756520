"""A forecast is right: in a thousand random places, what it says is what happens when one submits.

What a smaller size would do is tried on a copy of the place. A failing case prints its seed and the place.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.errors import InvalidRequestError, QuotaExceededError
from jupyter_gpu.queueing import forecast
from jupyter_gpu.schema import (
    Basis,
    CohortSpec,
    Forecast,
    Kind,
    Phase,
    Preemption,
    QueueSet,
    QueueSpec,
    Quota,
    Resources,
    Start,
    WorkloadSpec,
)
from tests.builders import a_workload, program, shown, status_of

PLACES, AT_ONCE = 1000, 50
GPU = "nvidia.com/gpu"
A_MOMENT_S = 0.001
START_TIMEOUT_S, GRACE_S = 300.0, 10.0
"""What a Workload may take beside its limit where it does not say: a forecast supposes that of all who wait."""

FOREVER = ("train",)
STUBBORN = program((), seconds=1e9, ignores_term=True)


@pytest.mark.parametrize("first", range(0, PLACES, AT_ONCE))
async def test_what_a_forecast_says_is_what_happens(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        await is_right(seed)


async def is_right(seed: int) -> None:
    """Ask a random place, and see whether the answer is true."""
    place, spec = await a_place(seed)
    before = await place.describe()
    answer = forecast(spec, before)
    with explained(seed, spec, before, answer):
        assert answer.basis is Basis.EXACT
        await a_smaller_one_is_as_told(place, spec, answer)
        if answer.never:
            with pytest.raises((QuotaExceededError, InvalidRequestError)):
                await place.submit(spec)
            return
        await place.submit(spec)
        await its_victims_are_as_told(place, spec, answer)
        await its_start_is_as_told(seed, place, spec, answer)


async def its_start_is_as_told(seed: int, place: MemoryBackend, spec: WorkloadSpec, answer: Forecast) -> None:
    status = await status_of(place, spec.id)
    starts = status.phase in (Phase.STARTING, Phase.RUNNING)
    if answer.starts_now:
        assert starts, "it does not start now"
        return
    if answer.preempts:
        place.advance(START_TIMEOUT_S + 100)  # longer than any start and grace
        assert await has_started(place, spec.id), "it has not started after those who had to yield"
    else:
        assert not starts, "it starts now"
        assert status.reason
        assert answer.reason
        assert (status.position, status.reason.code) == (answer.position, answer.reason.code)
        in_line = [one for one in answer.ahead if (await status_of(place, one.id)).position]  # not sweeps of which some run
        assert answer.position == len(in_line) + 1
    if answer.within_s is not None and lives_to_its_limits(seed):
        place.advance(answer.within_s + A_MOMENT_S)
        assert await has_started(place, spec.id), f"it has not started within {answer.within_s} s"


async def its_victims_are_as_told(place: MemoryBackend, spec: WorkloadSpec, answer: Forecast) -> None:
    assert await told_to_yield(place, spec.id) == {one.id for one in answer.preempts}


async def a_smaller_one_is_as_told(place: MemoryBackend, spec: WorkloadSpec, answer: Forecast) -> None:
    if answer.starts_now or not spec.resources.gpus:
        return
    if (size := answer.smaller_gpus) is not None:
        assert 0 <= size < spec.resources.gpus
        assert await starts_at_once(place.copy(), spec, size), f"with {size} it does not start now"
    if (larger := (size or 0) + 1) < spec.resources.gpus:
        assert not await starts_at_once(place.copy(), spec, larger), f"with {larger} it would start now"


async def starts_at_once(place: MemoryBackend, spec: WorkloadSpec, gpus: int) -> bool:
    """Return whether it starts at once with so many devices per replica, and nobody yields to it."""
    smaller = spec.model_copy(update={"resources": spec.resources.model_copy(update={"gpus": gpus})})
    try:
        await place.submit(smaller)
    except QuotaExceededError:
        return False
    if (await status_of(place, spec.id)).phase is Phase.QUEUED:
        return False
    return not await told_to_yield(place, spec.id)


async def told_to_yield(place: MemoryBackend, by: str) -> set[str]:
    """Return who was told to yield to a Workload."""
    stories = {id: await place.story(id) for id in await shown(place)}
    return {id for id, story in stories.items() for event in story if event.reason and event.reason.facts.get("by") == by}


async def has_started(place: MemoryBackend, id: str) -> bool:
    return any(event.phase is Phase.STARTING for event in await place.story(id))


def lives_to_its_limits(seed: int) -> bool:
    """Whether all at a place take all the time that they may: to start, to run, and to end.

    Only then is the time of a start a promise; where one ends early another may take its place, and be longer in the way.
    """
    return seed % 2 == 1


@contextmanager
def explained(seed: int, spec: WorkloadSpec, place: Any, answer: Forecast) -> Iterator[None]:
    """Print the place when something is not as told."""
    try:
        yield
    except BaseException:
        print(f"seed {seed}\n")
        print("asked:", spec.model_dump_json(exclude_defaults=True, exclude={"environment", "command"}), "\n")
        print("told:", answer.model_dump_json(exclude_defaults=True, indent=1), "\n")
        print("queues:", place.queue_set.model_dump_json(exclude_defaults=True, indent=1), "\n")
        for what in ("stocks", "holdings", "claims"):
            print(f"{what}:", *getattr(place, what), sep="\n  ")
        print(f"now: {place.time_s}")
        raise


async def a_place(seed: int) -> tuple[MemoryBackend, WorkloadSpec]:
    """Return a random place in which something happened, and something to ask for; the same for the same seed."""
    chance = random.Random(seed)
    slow = lives_to_its_limits(seed)
    models = {"NVIDIA A100": chance.randint(1, 5), "NVIDIA H100": chance.choice((0, 0, 2, 4))}
    place = MemoryBackend(models=models, start_s=START_TIMEOUT_S if slow else 1)
    queues = some_queues(chance)
    await place.apply_queues(queues)
    names = [queue.name for queue in queues.queues] or ["default"]
    for number in range(chance.randint(2, 12)):
        with suppress(QuotaExceededError):  # it could never start there
            await place.submit(something(chance, f"w-{number}", chance.choice(names), slow=slow))
        if chance.random() < 0.4:
            place.advance(chance.choice((1, 10, 100, 500)))
        if chance.random() < 0.1:
            id = chance.choice(sorted(await shown(place)) or ["nobody"])
            if id != "nobody":
                await place.cancel(id)
    while True:
        asked = something(chance, "asked", chance.choice(names), slow=slow)
        try:
            await place.submit(asked, dry_run=True)
        except QuotaExceededError:
            if chance.random() < 0.9:
                continue  # one that could never start is of interest, but not often
        return place, asked


def something(chance: random.Random, id: str, queue: str, *, slow: bool) -> WorkloadSpec:
    replicas = chance.choice((1, 1, 1, 2, 3))
    start = chance.choice(tuple(Start))
    kernel = chance.random() < 0.2
    resources = Resources(
        gpus=chance.choice((0, 1, 1, 1, 2, 2, 3, 4)),
        product=chance.choice((None, None, None, None, "A100", "H100")),
        cpus=chance.choice((0.5, 1, 2)),
        memory_bytes=1,
    )
    return a_workload(
        id,
        queue=queue,
        resources=resources,
        kind=Kind.KERNEL if kernel else Kind.BATCH,
        priority=chance.choice((-1, 0, 0, 0, 1, 5)),
        replicas=1 if kernel else replicas,
        start=start,
        max_parallel=chance.choice((None, None, 1, 2)) if start is Start.AS_THEY_FIT else None,
        max_runtime_s=chance.choice((None, 60, 600, 3600, 36000)),
        start_timeout_s=START_TIMEOUT_S,
        grace_s=GRACE_S if slow else chance.choice((0.0, 5.0, 60.0)),
        preemptible=chance.random() < 0.8,
        command=STUBBORN if slow else chance.choice((FOREVER, STUBBORN)),
        ttl_s=1e9,
    )


def some_queues(chance: random.Random) -> QueueSet:
    starve_after_s = chance.choice((0.0, 100.0, 600.0))
    if chance.random() < 0.2:
        return QueueSet(starve_after_s=starve_after_s)
    cohorts = [
        CohortSpec(name="lab", parent=chance.choice((None, "house"))),
        CohortSpec(name="shop", parent="house", quotas={GPU: Quota(nominal=chance.randint(0, 2))}),
    ]
    names = ("vision", "speech", "text")[: chance.randint(1, 3)]
    queues = tuple(_a_queue(chance, name, chance.choice((None, "lab", "lab", "shop"))) for name in names)
    return QueueSet(queues=queues, cohorts=tuple(cohorts), starve_after_s=starve_after_s)


def _a_queue(chance: random.Random, name: str, cohort: str | None) -> QueueSpec:
    nominal = chance.randint(0, 4)
    limits = {}
    if cohort:
        limits = {
            "borrowing_limit": chance.choice((None, None, 0, 1, 2)),
            "lending_limit": chance.choice((None, None, 0, nominal)),
        }
    quotas = {GPU: Quota(nominal=nominal, **limits)}
    if chance.random() < 0.2:
        quotas["cpu"] = Quota(nominal=chance.choice((2, 4, 8)))
    reclaim = chance.choice(("never", "lower_priority", "any"))
    borrowing = chance.choice(("never", "lower_priority")) if reclaim != "never" else "never"
    preemption = Preemption(
        within_queue=chance.choice(("never", "lower_priority", "lower_or_newer_equal_priority")),
        reclaim_within_cohort=reclaim,
        borrow_within_cohort=borrowing,
        max_priority_threshold=chance.choice((None, 0, 3)) if borrowing != "never" else None,
    )
    return QueueSpec(name=name, cohort=cohort, quotas=quotas, preemption=preemption)
