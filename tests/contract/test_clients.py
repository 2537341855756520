"""Who is a Workload's client, what happens without one, and how a client reaches it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from jupyter_gpu.backends.base import Backend, TcpAddress, UnixAddress
from jupyter_gpu.errors import ConflictError, NotFoundError, UnsupportedError
from jupyter_gpu.schema import LocalSettings, Phase, Port
from tests.builders import GREETING, KEYS, a_kernel, a_workload, finished, phase_of, program, reached, running, said, shown
from tests.contract.places import on_this_machine, really_runs, virtual

OTHER_KEYS = {name: value[::-1] for name, value in KEYS.items()}


async def a_queued_kernel(backend: Backend, id: str = "k-1", **changes) -> None:
    await backend.submit(a_workload("taken", gpus=2))
    await running(backend, "taken")
    await backend.submit(a_kernel(id, gpus=2, **changes), secrets=KEYS)


async def test_a_client_may_hold_what_it_holds_already(backend: Backend) -> None:
    await backend.submit(a_workload("w-1"))
    async with backend.hold("w-1"), backend.hold("w-1"):
        pass
    async with backend.hold("w-1"):
        pass


@really_runs
async def test_two_clients_in_one_process_may_hold_the_same(backend: Backend, second_client: Backend) -> None:
    await backend.submit(a_workload("w-1"))
    async with backend.hold("w-1"), second_client.hold("w-1"):
        pass


async def test_what_another_process_holds_is_a_conflict_that_names_it(backend: Backend, another_process_holds) -> None:
    await backend.submit(a_workload("w-1"))
    async with another_process_holds("w-1") as process:
        with pytest.raises(ConflictError, match=process.name):
            async with backend.hold("w-1"):
                raise AssertionError("two hold it")


async def test_a_hold_is_over_when_its_context_is_left(backend: Backend, another_process_holds) -> None:
    await backend.submit(a_workload("w-1"))
    async with backend.hold("w-1"):
        async with backend.hold("w-1"):
            pass
        with pytest.raises(ConflictError):  # the outer one still holds
            async with another_process_holds("w-1"):
                raise AssertionError("two hold it")
    async with another_process_holds("w-1"):
        pass


async def test_a_hold_is_over_when_its_process_dies(backend: Backend, another_process_holds) -> None:
    await backend.submit(a_workload("w-1"))
    async with another_process_holds("w-1") as process:
        await process.die()
        with anyio.fail_after(30):
            while True:
                try:
                    async with backend.hold("w-1"):
                        return
                except ConflictError:  # a cluster needs a moment to notice
                    await anyio.sleep(0.1)


async def test_nobody_can_be_held(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        async with backend.hold("nobody"):
            raise AssertionError("it does not exist")


async def test_what_waits_without_a_client_ends_as_orphaned(backend: Backend) -> None:
    await a_queued_kernel(backend, orphan_after_s=0.5)
    status = await finished(backend, "k-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "end.orphaned"


async def test_what_somebody_holds_is_no_orphan(backend: Backend) -> None:
    await a_queued_kernel(backend, "k-1", orphan_after_s=0.5)
    async with backend.hold("k-1"):
        await backend.submit(a_kernel("k-2", gpus=2, orphan_after_s=0.5), secrets=KEYS)
        await finished(backend, "k-2")  # nobody holds it, and it came later
        assert await phase_of(backend, "k-1") is Phase.QUEUED
    assert (await finished(backend, "k-1")).phase is Phase.FAILED


async def test_without_a_limit_nothing_is_an_orphan(backend: Backend) -> None:
    await a_queued_kernel(backend, "k-1", orphan_after_s=None)
    await backend.submit(a_kernel("k-2", gpus=2, orphan_after_s=0.3), secrets=KEYS)
    await finished(backend, "k-2")
    assert await phase_of(backend, "k-1") is Phase.QUEUED


async def test_a_kernels_keys_come_back_to_its_owner(backend: Backend, second_client: Backend) -> None:
    await a_queued_kernel(backend)
    assert await backend.connection("k-1") == KEYS
    assert await second_client.connection("k-1") == KEYS


async def test_who_comes_second_with_other_keys_uses_the_first_ones(backend: Backend, second_client: Backend) -> None:
    await a_queued_kernel(backend)
    await second_client.submit(a_kernel("k-1", gpus=2), secrets=OTHER_KEYS)
    assert await second_client.connection("k-1") == KEYS


async def test_of_two_launches_at_once_both_use_the_same_keys(backend: Backend, second_client: Backend) -> None:
    await backend.submit(a_workload("taken", gpus=2))
    await running(backend, "taken")

    async def launch(client: Backend, keys: dict[str, str]) -> None:
        await client.submit(a_kernel("k-1", gpus=2), secrets=keys)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(launch, backend, KEYS)
        tasks.start_soon(launch, second_client, OTHER_KEYS)
    found = await backend.connection("k-1")
    assert found == await second_client.connection("k-1")
    assert found in (KEYS, OTHER_KEYS)


async def test_the_keys_are_gone_after_the_end(backend: Backend) -> None:
    await a_queued_kernel(backend)
    await backend.cancel("k-1")
    await finished(backend, "k-1")
    with pytest.raises(NotFoundError, match="k-1"):
        await backend.connection("k-1")


async def test_a_new_attempt_has_new_keys(backend: Backend) -> None:
    await a_queued_kernel(backend)
    await backend.cancel("k-1")
    await finished(backend, "k-1")
    await backend.submit(a_kernel("k-1", gpus=2), secrets=OTHER_KEYS)
    await reached(backend, "k-1", Phase.QUEUED)
    assert await backend.connection("k-1") == OTHER_KEYS


async def test_only_kernels_have_a_connection(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", secrets=tuple(sorted(KEYS))), secrets=KEYS)
    for id in ("w-1", "nobody"):
        with pytest.raises(NotFoundError, match=id):
            await backend.connection(id)


async def test_keys_are_shown_nowhere_but_by_connection(backend: Backend) -> None:
    await a_queued_kernel(backend)
    place, workloads = await backend.describe(), await shown(backend)
    for text in (place.model_dump_json(), *(workload.model_dump_json() for workload in workloads.values())):
        assert KEYS["key"] not in text


@on_this_machine
async def test_secrets_are_in_private_files_only_and_are_gone_after_the_end(
    backend: Backend, local_settings: LocalSettings
) -> None:
    def files_with_secrets() -> list[Path]:
        assert local_settings.state_folder
        files = [path for path in local_settings.state_folder.rglob("*") if path.is_file()]
        return [path for path in files if KEYS["key"].encode() in path.read_bytes()]

    await a_queued_kernel(backend)
    assert files_with_secrets()
    assert {oct(path.stat().st_mode & 0o777) for path in files_with_secrets()} == {"0o600"}
    await backend.cancel("k-1")
    await finished(backend, "k-1")
    assert files_with_secrets() == []


@really_runs
async def test_a_port_is_reached_by_its_name(backend: Backend) -> None:
    ports = (Port(name="http", number=8080), Port(name="not-used", number=8081))
    await backend.submit(a_workload("w-1", ports=ports, command=program(("listens",), serves="http", seconds=600)))
    await said(backend, "w-1", "listens")
    async with backend.open_port("w-1", port="http") as address:
        for _ in range(2):
            assert await _read_all(address) == GREETING


@really_runs
async def test_two_workloads_with_the_same_port_do_not_meet(backend: Backend) -> None:
    for id in ("w-1", "w-2"):
        ports = (Port(name="http", number=8080),)
        await backend.submit(a_workload(id, ports=ports, command=program(("listens",), serves="http", seconds=600)))
        await said(backend, id, "listens")
    await backend.cancel("w-1")
    await finished(backend, "w-1")
    async with backend.open_port("w-2", port="http") as address:
        assert await _read_all(address) == GREETING


@really_runs
async def test_a_port_that_is_not_there_is_not_found(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", ports=(Port(name="http", number=8080),)))
    await running(backend, "w-1")
    for which in ({"port": "other"}, {"port": "http", "replica": 1}):
        with pytest.raises(NotFoundError):
            async with backend.open_port("w-1", **which):
                raise AssertionError("it does not exist")


@really_runs
async def test_what_does_not_run_has_no_ports(backend: Backend) -> None:
    await a_queued_kernel(backend)
    for id in ("k-1", "nobody"):
        with pytest.raises(NotFoundError):
            async with backend.open_port(id, port="shell"):
                raise AssertionError("it does not run")


@virtual
async def test_a_place_without_ports_says_so(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", ports=(Port(name="http", number=8080),)))
    await running(backend, "w-1")
    with pytest.raises(UnsupportedError, match="ports"):
        async with backend.open_port("w-1", port="http"):
            raise AssertionError("there is none")


@pytest.mark.parametrize("method", ["describe", "submit", "cancel", "hold", "connection", "logs", "watch", "tend"])
async def test_a_call_that_is_cancelled_midway_leaves_a_place_that_works(backend: Backend, method: str) -> None:
    await a_queued_kernel(backend)

    async def call() -> None:
        if method == "submit":
            await backend.submit(a_workload("w-1"))
        elif method == "hold":
            async with backend.hold("k-1"):
                await anyio.sleep_forever()
        elif method in ("logs", "watch"):
            async for _ in backend.logs("k-1", follow=True) if method == "logs" else backend.watch():
                pass
        else:
            arguments = {"describe": (), "tend": (datetime.now(UTC),)}.get(method, ("k-1",))
            await getattr(backend, method)(*arguments)

    for turns in (0, 1, 2, 3, 5, 8, 13, 21):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    await backend.submit(a_workload("w-1"))
    await running(backend, "w-1")
    async with backend.hold("k-1"):
        pass
    await backend.cancel("k-1")
    assert (await finished(backend, "k-1")).phase is Phase.CANCELLED


async def _read_all(address: TcpAddress | UnixAddress) -> str:
    if isinstance(address, TcpAddress):
        stream = await anyio.connect_tcp(address.host, address.port)
    else:
        stream = await anyio.connect_unix(address.path)
    received = b""
    async with stream:
        with anyio.fail_after(20):
            try:
                while True:
                    received += await stream.receive()
            except anyio.EndOfStream:
                return received.decode()
