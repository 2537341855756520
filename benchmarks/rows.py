"""What is measured: each row prepares two ways of doing the same, which return their seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from queue import Empty

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from benchmarks.admission import admission_step
from benchmarks.bare_pod import bare_pod, cluster, direct_client
from benchmarks.queueing import decision

Way = Callable[[], Awaitable[float]]
READY_S = 60.0
MEGABYTES = 50


@dataclass(frozen=True)
class Row:
    """One promise."""

    name: str
    budget: float
    prepare: Callable[[], AbstractAsyncContextManager[tuple[Way, Way]]]
    turns: int = 7
    cluster: bool = False
    unit: str = "s"


async def start(name: str) -> tuple[AsyncKernelManager, AsyncKernelClient]:
    """Start a kernel and return it when it is ready for the first cell."""
    manager = AsyncKernelManager(kernel_name=name)
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    await ready(client)
    return manager, client


async def ready(client: AsyncKernelClient) -> None:
    """Wait until a kernel answers. (`wait_for_ready` gives up on a kernel without a manager whose heartbeat is not there yet.)"""
    async with asyncio.timeout(READY_S):
        while True:
            id = client.kernel_info()
            try:
                while (await client.get_shell_msg(timeout=1))["parent_header"].get("msg_id") != id:
                    pass
                return
            except Empty:
                continue  # it was not there yet


async def stop(manager: AsyncKernelManager, client: AsyncKernelClient) -> None:
    """Shut a kernel down."""
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


def started(name: str) -> Way:
    """A way: from nothing to ready for the first cell."""

    async def way() -> float:
        begun = time.perf_counter()
        manager, client = await start(name)
        seconds = time.perf_counter() - begun
        await stop(manager, client)
        return seconds

    return way


@asynccontextmanager
async def local_start() -> AsyncIterator[tuple[Way, Way]]:
    """A GPU kernel on this machine, against a plain one."""
    yield started("gpu"), started("python3")


@asynccontextmanager
async def pod_start() -> AsyncIterator[tuple[Way, Way]]:
    """A kernel pod, against a bare pod with the same image that starts ipykernel itself."""

    async with cluster() as core:

        async def plain() -> float:
            begun = time.perf_counter()
            async with bare_pod(core) as client:
                await ready(client)
                return time.perf_counter() - begun

        yield started("pod"), plain


@asynccontextmanager
async def kernels(*names: str) -> AsyncIterator[list[tuple[AsyncKernelManager, AsyncKernelClient]]]:
    """Kernels that stay for the whole run."""
    running = [await start(name) for name in names]
    try:
        yield running
    finally:
        for manager, client in running:
            await stop(manager, client)


@asynccontextmanager
async def restart() -> AsyncIterator[tuple[Way, Way]]:
    """A restart in place, against that of a plain kernel."""
    async with kernels("gpu", "python3") as running:

        def restarted(manager: AsyncKernelManager, client: AsyncKernelClient) -> Way:
            async def way() -> float:
                begun = time.perf_counter()
                await manager.restart_kernel(now=True)
                await ready(client)
                return time.perf_counter() - begun

            return way

        yield restarted(*running[0]), restarted(*running[1])


async def cell(client: AsyncKernelClient, code: str) -> float:
    """Return the seconds of a cell, from sent to all output there."""
    begun = time.perf_counter()
    reply = await client.execute_interactive(code, timeout=READY_S, output_hook=lambda _: None)
    assert reply["content"]["status"] == "ok", reply["content"]
    return time.perf_counter() - begun


@asynccontextmanager
async def round_trip() -> AsyncIterator[tuple[Way, Way]]:
    """A cell's round trip to a pod as our manager connects, against the same kernel reached directly."""
    async with cluster() as core, kernels("pod") as [(manager, client)]:
        direct = await direct_client(core, manager)

        def hundred(client: AsyncKernelClient) -> Way:
            async def way() -> float:
                return sum([await cell(client, "1") for _ in range(100)]) * 10  # ms each

            return way

        try:
            yield hundred(client), hundred(direct)
        finally:
            direct.stop_channels()


def printing(client: AsyncKernelClient) -> Way:
    """A way: a cell that prints 50 MB."""
    code = f"import sys\nfor _ in range({MEGABYTES}):\n    sys.stdout.write('x' * 999_999 + '\\n'); sys.stdout.flush()"

    async def way() -> float:
        return await cell(client, code)

    return way


def output_of(name: str) -> Callable[[], AbstractAsyncContextManager[tuple[Way, Way]]]:
    """50 MB of output of one of our kernels, against a plain one by TCP."""

    @asynccontextmanager
    async def prepare() -> AsyncIterator[tuple[Way, Way]]:
        async with kernels(name, "python3") as [(_, ours), (_, plain)]:
            yield printing(ours), printing(plain)

    return prepare


ROWS = (
    Row("GPU kernel, local, ready for the first cell", 1.10, local_start, turns=9),
    Row("kernel pod, image present, ready for the first cell", 1.10, pod_start, cluster=True),
    Row("restart in place", 1.10, restart, turns=9),
    Row("cell round trip, in cluster", 1.05, round_trip, cluster=True, unit="ms"),
    Row("the decision alone, 1,000 waiting: milliseconds", 4.0, decision, turns=21, unit="ms"),
    Row("local admission step, 1,000 waiting: milliseconds", 10.0, admission_step, turns=21, unit="ms"),
    Row("50 MB of output, ipc (local)", 1.05, output_of("gpu"), turns=5),
    Row("50 MB of output, Curve (pod)", 1.60, output_of("pod"), turns=5, cluster=True),
)
