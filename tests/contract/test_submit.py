"""Asking for a Workload to run, by its id."""

from __future__ import annotations

import base64
import json

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import ConflictError, InvalidRequestError, QuotaExceededError
from jupyter_gpu.schema import Kind, Phase, Resources
from tests.builders import (
    KEYS,
    a_kernel,
    a_workload,
    finished,
    log_of,
    phase_of,
    program,
    running,
    shown,
    status_of,
    texts,
    until,
)
from tests.contract.places import decides_itself, on_this_machine, really_runs


async def test_what_fits_starts_at_once(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    status = await running(backend, "w-1")
    assert status.id == "w-1"
    assert status.attempt == 1
    assert status.position is None
    assert status.ended is None
    assert status.started
    assert status.created <= status.started


@decides_itself
async def test_what_fits_is_not_queued_when_submit_returns(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    assert await phase_of(backend, "w-1") in (Phase.STARTING, Phase.RUNNING)


async def test_what_does_not_fit_waits_and_says_why(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=2))
    await until(backend, lambda workloads: "w-2" in workloads and workloads["w-2"].status.reason)
    status = await status_of(backend, "w-2")
    assert status.phase is Phase.QUEUED
    assert not status.ready
    assert status.started is None
    assert status.reason
    assert status.reason.code.startswith("queue.")
    assert status.reason.message


@decides_itself
async def test_who_waits_knows_the_place_in_line_and_the_numbers_behind_it(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1))
    await backend.submit(a_workload("w-2", gpus=2))
    await backend.submit(a_workload("w-3", gpus=2))
    status = await status_of(backend, "w-3")
    assert status.phase is Phase.QUEUED
    assert status.position == 2
    assert status.reason
    assert status.reason.code == "queue.busy"
    facts = {"resource": "nvidia.com/gpu", "asked": 2, "free": 1, "capacity": 2}
    assert facts.items() <= status.reason.facts.items()


async def test_a_running_workload_shows_its_replicas_and_where_they_are(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1))
    status = await running(backend, "w-1")
    (replica,) = status.replicas
    assert replica.rank == 0
    assert replica.phase is Phase.RUNNING
    assert replica.node


async def test_it_is_ready_once_every_replica_is_up(backend: Backend) -> None:
    await backend.submit(a_workload("w-1"))
    status = await until(backend, lambda workloads: workloads["w-1"].status if workloads["w-1"].status.ready else None)
    assert status.phase is Phase.RUNNING


async def test_the_place_says_who_owns_it(backend: Backend) -> None:
    await backend.submit(a_workload("w-1"))
    assert (await shown(backend))["w-1"].spec.owner == (await backend.describe()).identity


async def test_all_that_was_asked_for_is_shown_again(backend: Backend) -> None:
    spec = a_workload(
        "w-1", kind=Kind.SERVICE, name="Any näme / at all 🚀", server="s", profile="p", priority=3, labels={"Color": "blue ✓"}
    )
    await backend.submit(spec)
    found = (await shown(backend))["w-1"].spec
    assert found.model_copy(update={"owner": ""}) == spec


async def test_the_same_again_changes_nothing(backend: Backend, second_client: Backend) -> None:
    documents = await backend.submit(a_workload("w-1", gpus=1))
    before = await running(backend, "w-1")
    assert len(await second_client.submit(a_workload("w-1", gpus=1))) == len(documents)
    after = await status_of(backend, "w-1")
    assert (after.attempt, after.sequence, after.created) == (before.attempt, before.sequence, before.created)
    assert list(await shown(backend)) == ["w-1"]


async def test_the_same_again_changes_nothing_while_it_waits(backend: Backend, second_client: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=2))
    await second_client.submit(a_workload("w-2", gpus=2))
    status = await status_of(backend, "w-2")
    assert (status.phase, status.attempt) == (Phase.QUEUED, 1)


@pytest.mark.parametrize(
    "change", [{"gpus": 2}, {"name": "other"}, {"priority": 1}, {"command": program(("other",), seconds=600)}]
)
async def test_other_content_under_the_same_id_is_a_conflict(backend: Backend, change: dict) -> None:
    await backend.submit(a_workload("w-1", gpus=1))
    with pytest.raises(ConflictError, match="w-1"):
        await backend.submit(a_workload("w-1", **{"gpus": 1} | change))
    assert (await running(backend, "w-1")).attempt == 1


async def test_after_the_end_it_is_a_new_attempt_with_the_new_content(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", name="first", command=program(("first",))))
    first = await finished(backend, "w-1")
    await backend.submit(a_workload("w-1", name="second", command=program(("second",))))
    second = await until(backend, lambda workloads: (s := workloads["w-1"].status).phase.is_final and s.attempt == 2 and s)
    assert second.phase is Phase.SUCCEEDED
    assert second.sequence > first.sequence
    assert (await shown(backend))["w-1"].spec.name == "second"
    assert texts(await log_of(backend, "w-1")) == ["second"]


async def test_the_story_of_an_earlier_attempt_is_kept(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("first",))))
    await finished(backend, "w-1")
    await backend.submit(a_workload("w-1"))
    await running(backend, "w-1")
    lines = await log_of(backend, "w-1", attempt=1)
    assert texts(lines) == ["first"]
    assert {line.attempt for line in lines} == {1}


async def test_a_new_attempt_starts_with_a_clean_slate(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(exit_code=3)))
    await finished(backend, "w-1")
    await backend.submit(a_workload("w-1"))
    status = await running(backend, "w-1")
    assert status.attempt == 2
    assert status.ended is None
    assert status.reason is None


async def test_a_dry_run_writes_nothing_and_returns_the_documents(backend: Backend) -> None:
    documents = await backend.submit(a_kernel("k-1", gpus=2), secrets=KEYS, dry_run=True)
    assert documents
    assert await shown(backend) == {}
    place = await backend.describe()
    assert place.free is None or place.free["nvidia.com/gpu"] == 2


async def test_a_dry_run_shows_what_would_be_written(backend: Backend) -> None:
    spec = a_workload("w-1")
    would_be = await backend.submit(spec, dry_run=True)
    assert [set(document) for document in would_be] == [set(document) for document in await backend.submit(spec)]


async def test_a_dry_run_refuses_what_submit_would_refuse(backend: Backend) -> None:
    await backend.submit(a_workload("w-1"))
    with pytest.raises(QuotaExceededError):
        await backend.submit(a_workload("w-2", gpus=3), dry_run=True)
    with pytest.raises(ConflictError):
        await backend.submit(a_workload("w-1", name="other"), dry_run=True)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_documents_hold_no_secret_values(backend: Backend, dry_run: bool) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    text = json.dumps(
        [dict(document) for document in await backend.submit(a_kernel("k-1", gpus=2), secrets=KEYS, dry_run=dry_run)]
    )
    for value in KEYS.values():
        assert json.dumps(value) not in text
        assert base64.b64encode(value.encode()).decode() not in text


async def test_more_devices_than_there_are_can_never_start(backend: Backend) -> None:
    with pytest.raises(QuotaExceededError, match="2") as caught:
        await backend.submit(a_workload("w-1", gpus=3))
    assert (caught.value.resource, caught.value.asked, caught.value.limit) == ("nvidia.com/gpu", 3, 2)
    assert await shown(backend) == {}


async def test_all_replicas_together_must_fit_into_the_place(backend: Backend) -> None:
    with pytest.raises(QuotaExceededError):
        await backend.submit(a_workload("w-1", gpus=1, replicas=3))


async def test_a_kind_of_device_that_the_place_lacks_can_never_start(backend: Backend) -> None:
    resources = Resources(accelerator="amd.com/gpu", gpus=1, cpus=0.1, memory_bytes="128MiB")
    with pytest.raises(QuotaExceededError, match=r"amd\.com/gpu"):
        await backend.submit(a_workload("w-1", resources=resources))


async def test_no_device_of_a_kind_that_the_place_lacks_is_no_trouble(backend: Backend) -> None:
    resources = Resources(accelerator="amd.com/gpu", gpus=0, cpus=0.1, memory_bytes="128MiB")
    await backend.submit(a_workload("w-1", resources=resources))
    await running(backend, "w-1")


@on_this_machine
async def test_an_interpreter_that_is_not_there_is_refused(backend: Backend) -> None:
    spec = a_workload("w-1")
    environment = spec.environment.model_copy(update={"interpreter": "/no/such/python"})
    with pytest.raises(InvalidRequestError, match="/no/such/python"):
        await backend.submit(spec.model_copy(update={"environment": environment}))
    assert await shown(backend) == {}


@pytest.mark.parametrize("backend", [pytest.param("kubernetes", marks=pytest.mark.cluster)], indirect=True)
async def test_no_image_is_refused(backend: Backend) -> None:
    spec = a_workload("w-1")
    environment = spec.environment.model_copy(update={"image": None})
    with pytest.raises(InvalidRequestError, match="image"):
        await backend.submit(spec.model_copy(update={"environment": environment}))


@really_runs
async def test_a_program_that_is_not_there_is_refused_or_ends_with_the_cause(backend: Backend) -> None:
    try:
        await backend.submit(a_workload("w-1", gpus=2, command=("/no/such/program",)))
    except InvalidRequestError as error:
        assert "/no/such/program" in str(error)
        assert await shown(backend) == {}
        return
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "start.command"
    assert "/no/such/program" in status.reason.message


async def test_two_clients_that_ask_for_the_same_at_once_get_one_workload(backend: Backend, second_client: Backend) -> None:
    async with anyio.create_task_group() as tasks:
        for client in (backend, second_client, backend, second_client):
            tasks.start_soon(client.submit, a_workload("w-1", gpus=1))
    assert (await running(backend, "w-1")).attempt == 1
    assert list(await shown(second_client)) == ["w-1"]
    place = await backend.describe()
    assert place.free is None or place.free["nvidia.com/gpu"] == 1


async def test_of_two_clients_with_different_content_one_wins(backend: Backend, second_client: Backend) -> None:
    outcomes: dict[str, str] = {}

    async def ask(client: Backend, name: str) -> None:
        try:
            await client.submit(a_workload("w-1", name=name))
            outcomes[name] = "won"
        except ConflictError:
            outcomes[name] = "lost"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, backend, "one")
        tasks.start_soon(ask, second_client, "other")
    assert sorted(outcomes.values()) == ["lost", "won"]
    assert outcomes[(await shown(backend))["w-1"].spec.name] == "won"


STRANGE = {
    "emoji": "🚀 née № 1",
    "long": "x" * 250,
    "long and alike": "x" * 249 + "y",
    "climbing": "../..",
    "climbing, alike": "..-..",
    "dot": ".",
    "upper case": "UPPER",
    "lower case": "upper",
    "option": "-rf",
    "two lines": "a\nb",
    "quotes": "'\"; drop table workloads; --",
    "glob": "w-*",
    "percent": "%2e%2e%2f",
    "slash": "/etc/passwd",
    "surrounded": " x ",
}


async def test_strange_ids_work_or_are_refused_cleanly_and_never_mix(backend: Backend) -> None:
    accepted = []
    for id in STRANGE.values():
        try:
            await backend.submit(a_workload(id, name="x", command=program((id.replace("\n", " "),))))
        except InvalidRequestError as error:
            assert str(error)
        else:
            accepted.append(id)
    for id in accepted:
        assert (await finished(backend, id)).phase is Phase.SUCCEEDED
        assert texts(await log_of(backend, id)) == [id.replace("\n", " ")]
    assert set(await shown(backend)) == set(accepted)
    assert len(accepted) > len(STRANGE) / 2
