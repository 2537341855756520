"""Seeing what there is, and what changes."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.schema import Changes, Kind, Phase, Selector
from tests.builders import a_workload, finished, program, running, shown, time_passes


async def test_the_first_step_of_an_empty_place_is_complete_and_empty(backend: Backend) -> None:
    async with aclosing(backend.watch()) as steps:
        assert await anext(steps) == Changes(complete=True)


async def test_the_first_step_holds_all_there_is(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program()))
    await finished(backend, "w-1")
    await backend.submit(a_workload("w-2"))
    async with aclosing(backend.watch()) as steps:
        first = await anext(steps)
    assert first.complete
    assert {workload.spec.id for workload in first.workloads} == {"w-1", "w-2"}


async def test_then_it_shows_what_changed(backend: Backend) -> None:
    await backend.submit(a_workload("w-1"))
    await running(backend, "w-1")
    async with aclosing(backend.watch()) as steps:
        await anext(steps)
        await backend.submit(a_workload("w-2"))
        step = await _next(backend, steps)
    assert not step.complete
    assert [workload.spec.id for workload in step.workloads] == ["w-2"]
    assert step.removed == ()


async def test_a_slow_reader_gets_the_newest_state(backend: Backend) -> None:
    async with aclosing(backend.watch()) as steps:
        await anext(steps)
        await backend.submit(a_workload("w-1", command=program()))
        await finished(backend, "w-1")
        await backend.submit(a_workload("w-2", command=program()))
        await finished(backend, "w-2")
        phases: dict[str, Phase] = {}
        count = 0
        while set(phases.values()) != {Phase.SUCCEEDED} or len(phases) < 2:
            phases |= {workload.spec.id: workload.status.phase for workload in (await _next(backend, steps)).workloads}
            count += 1
    assert count <= 2  # there were six changes or more


async def test_every_watcher_sees_every_change(backend: Backend, second_client: Backend) -> None:
    seen: list[tuple[str, Phase]] = []

    async def watch(name: str, client: Backend) -> None:
        async with aclosing(client.watch()) as steps:
            async for step in steps:
                for workload in step.workloads:
                    seen.append((name, workload.status.phase))
                    if workload.status.phase.is_final:
                        return

    with anyio.fail_after(30):
        async with time_passes(backend), anyio.create_task_group() as tasks:
            tasks.start_soon(watch, "one", backend)
            tasks.start_soon(watch, "two", backend)
            tasks.start_soon(watch, "three", second_client)
            await backend.submit(a_workload("w-1", command=program()))
    assert {(name, Phase.SUCCEEDED) for name in ("one", "two", "three")} <= set(seen)


@pytest.mark.parametrize(
    "selector",
    [
        Selector(ids=frozenset({"w-1", "nobody"})),
        Selector(kinds=frozenset({Kind.SERVICE, Kind.TRAINING})),
        Selector(server="here"),
        Selector(kinds=frozenset({Kind.SERVICE}), server="here"),
    ],
    ids=["ids", "kinds", "server", "both"],
)
async def test_a_selector_shows_only_its_own(backend: Backend, selector: Selector) -> None:
    async with aclosing(backend.watch(selector)) as steps:
        assert await anext(steps) == Changes(complete=True)
        await backend.submit(a_workload("w-2", server="there"))
        await backend.submit(a_workload("w-1", kind=Kind.SERVICE, server="here"))
        step = await _next(backend, steps)
        assert [workload.spec.id for workload in step.workloads] == ["w-1"]
    assert list(await shown(backend, selector)) == ["w-1"]


async def test_a_selector_that_matches_nothing_shows_nothing(backend: Backend) -> None:
    await backend.submit(a_workload("w-1"))
    assert await shown(backend, Selector(queue="elsewhere")) == {}


async def test_what_is_forgotten_is_shown_as_removed(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", ttl_s=0.5, command=program()))
    await finished(backend, "w-1")
    async with aclosing(backend.watch()) as steps:
        assert len((await anext(steps)).workloads) == 1
        if advance := getattr(backend, "advance_to_next", None):
            advance()
        step = await _next(backend, steps)
    assert step.removed == ("w-1",) or (step.complete and not step.workloads)


async def test_a_watch_goes_on_until_it_is_closed(backend: Backend) -> None:
    async with aclosing(backend.watch()) as steps:
        await anext(steps)
        for number in range(3):
            await backend.submit(a_workload(f"w-{number}"))
            found: set[str] = set()
            while f"w-{number}" not in found:
                found |= {workload.spec.id for workload in (await _next(backend, steps)).workloads}


async def test_a_watch_that_is_abandoned_disturbs_nobody(backend: Backend) -> None:
    with anyio.move_on_after(0.05):
        async with aclosing(backend.watch()) as steps:
            async for _ in steps:
                pass
    await backend.submit(a_workload("w-1"))
    await running(backend, "w-1")


async def _next(backend: Backend, steps) -> Changes:
    with anyio.fail_after(30):
        async with time_passes(backend):
            return await anext(steps)
    raise AssertionError("unreachable")
