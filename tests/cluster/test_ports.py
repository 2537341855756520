"""How ports are reached: straight, or through the API server to a Unix socket."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest

from jupyter_gpu.backends.base import Address, Backend, TcpAddress, UnixAddress
from jupyter_gpu.backends.kubernetes import KubernetesBackend
from jupyter_gpu.schema import KubernetesSettings, Phase, Port, Reach
from tests.builders import GREETING, a_workload, program, reached, running, said

pytestmark = pytest.mark.cluster

ECHO = """
import os, socket, sys, threading, time
time.sleep(float(sys.argv[1]))
listener = socket.create_server((sys.argv[2], int(os.environ["JUPYTER_GPU_PORT_ECHO"])))
print("listens", flush=True)
def serve(connection):
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def an_echo(id: str = "w-1", *, after_s: float = 0, host: str = "", **changes):
    command = ("python3", "-c", ECHO, str(after_s), host)
    ports = (Port(name="echo", number=7000, loopback=host == "127.0.0.1"),)
    return a_workload(id, command=command, **{"ports": ports} | changes)


@pytest.fixture
async def forwarding(kubernetes_settings: KubernetesSettings) -> AsyncIterator[KubernetesBackend]:
    """A place whose ports are all reached through the API server."""
    settings = kubernetes_settings.model_copy(update={"reach": Reach.PORT_FORWARD})
    async with KubernetesBackend("k", settings) as backend:
        yield backend


async def connected(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(address, UnixAddress):
        return await asyncio.open_unix_connection(str(address.path))
    return await asyncio.open_connection(address.host, address.port)


async def read_from(address: Address) -> bytes:
    """Return all that a port says until it closes."""
    reader, writer = await connected(address)
    with anyio.fail_after(20):
        data = await reader.read()
    writer.close()
    return data


async def exchange(address: Address, data: bytes) -> bytes:
    """Send bytes and return as many."""
    reader, writer = await connected(address)

    async def send() -> None:
        for start in range(0, len(data), 1 << 16):
            writer.write(data[start : start + (1 << 16)])
            await writer.drain()

    with anyio.fail_after(60):
        sending = asyncio.create_task(send())
        answer = await reader.readexactly(len(data))
        await sending
    writer.close()
    return answer


async def test_what_goes_through_the_api_server_comes_back_whole(forwarding: Backend) -> None:
    await forwarding.submit(an_echo())
    await said(forwarding, "w-1", "listens")
    data = os.urandom(8 << 20)
    async with forwarding.open_port("w-1", port="echo") as address:
        assert isinstance(address, UnixAddress)
        assert await exchange(address, data) == data
        answers = await asyncio.gather(*(exchange(address, data[number << 10 : (number + 100) << 10]) for number in range(20)))
        assert answers == [data[number << 10 : (number + 100) << 10] for number in range(20)]


async def test_the_near_end_is_private_short_and_gone_afterwards(forwarding: Backend) -> None:
    await forwarding.submit(an_echo())
    await said(forwarding, "w-1", "listens")
    async with forwarding.open_port("w-1", port="echo") as address, forwarding.open_port("w-1", port="echo") as again:
        assert isinstance(address, UnixAddress)
        assert address == again
        assert address.path.name == "k-7000"
        assert len(str(address.path)) < 90
        assert stat.S_IMODE(address.path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(address.path.parent.parent.stat().st_mode) == 0o700
    assert not address.path.parent.exists()
    await forwarding.aclose()
    assert not address.path.parent.parent.exists()


async def test_nobody_who_listens_is_an_answer(forwarding: Backend) -> None:
    await forwarding.submit(an_echo(after_s=600))
    await running(forwarding, "w-1")
    async with forwarding.open_port("w-1", port="echo") as address:
        assert await read_from(address) == b""


async def test_a_kernels_connection_waits_until_it_listens_and_loses_no_byte(forwarding: KubernetesBackend) -> None:
    await forwarding.submit(an_echo(after_s=2))
    await running(forwarding, "w-1")
    target = replace(await forwarding._target("w-1", 0, "echo"), is_kernel=True)
    assert forwarding._parts
    async with forwarding._parts.ports.open(target) as address:
        data = os.urandom(10_000)
        assert await exchange(address, data) == data


async def test_a_connection_that_the_program_ends_is_ended_here(forwarding: Backend) -> None:
    ports = (Port(name="http", number=8080),)
    await forwarding.submit(a_workload("w-1", command=program(seconds=600, serves="http"), ports=ports))
    await said(forwarding, "w-1", "hello")
    async with forwarding.open_port("w-1", port="http") as address:
        assert await read_from(address) == GREETING.encode()
        assert await read_from(address) == GREETING.encode()


async def test_a_port_on_loopback_is_forwarded_even_where_pods_are_reached(kubernetes_backend: Backend) -> None:
    await kubernetes_backend.submit(an_echo(host="127.0.0.1"))
    await said(kubernetes_backend, "w-1", "listens")
    async with kubernetes_backend.open_port("w-1", port="echo") as address:
        assert isinstance(address, UnixAddress)
        assert await exchange(address, b"x" * 1000) == b"x" * 1000


async def test_pods_that_are_reached_are_reached_straight(kubernetes_backend: Backend) -> None:
    await kubernetes_backend.submit(an_echo())
    await said(kubernetes_backend, "w-1", "listens")
    async with kubernetes_backend.open_port("w-1", port="echo") as address:
        if isinstance(address, UnixAddress):
            pytest.skip("pods of this cluster are not reached from here")
        assert isinstance(address, TcpAddress)
        assert await exchange(address, b"x" * 1000) == b"x" * 1000


async def test_pods_that_do_not_answer_are_reached_through_the_api_server(
    kubernetes_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_gpu.backends.kubernetes import ports

    async def unreachable(host: str, port: int) -> bool:
        asked.append(host)
        return False

    asked: list[str] = []
    monkeypatch.setattr(ports, "_probe", unreachable)
    await kubernetes_backend.submit(an_echo())
    await said(kubernetes_backend, "w-1", "listens")
    for _ in range(2):
        async with kubernetes_backend.open_port("w-1", port="echo") as address:
            assert isinstance(address, UnixAddress)
            assert await exchange(address, b"abc") == b"abc"
    assert len(asked) == 1


async def test_a_bridge_does_not_outlive_its_pod(forwarding: Backend) -> None:
    await forwarding.submit(an_echo())
    await said(forwarding, "w-1", "listens")
    async with forwarding.open_port("w-1", port="echo") as address:
        reader, writer = await connected(address)
        writer.write(b"abc")
        assert await reader.readexactly(3) == b"abc"
        await forwarding.cancel("w-1", grace_s=0)
        with anyio.fail_after(20):
            assert await reader.read() == b""
        writer.close()
        await reached(forwarding, "w-1", Phase.CANCELLED)
        assert await read_from(address) == b""
