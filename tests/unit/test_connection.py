"""The one loop, and the two bridges to it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from anyio.lowlevel import checkpoint

import jupyter_gpu
from jupyter_gpu.connection import Connection, connect, open_connection
from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import Phase
from jupyter_gpu.services import Services
from tests.builders import DEADLINE_S, a_workload, program
from tests.homes import Home


@pytest.fixture
def connection(home: Home) -> Iterator[Connection]:
    """A connection to the local place."""
    opened = open_connection()
    yield opened
    opened.close()


async def _thread_name(_: Services) -> str:
    return threading.current_thread().name


def test_services_live_on_one_thread_of_their_own(connection: Connection) -> None:
    with ThreadPoolExecutor(4) as pool:
        names = set(pool.map(lambda _: connection.call(_thread_name).result(), range(8)))
    assert names == {"jupyter-gpu"}


async def test_a_call_can_be_awaited_on_another_loop(connection: Connection) -> None:
    assert await asyncio.wrap_future(connection.call(_thread_name)) == "jupyter-gpu"


def test_an_error_arrives_as_it_was_raised(connection: Connection) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        connection.call(lambda services: services.workloads.find("nobody")).result()


def test_a_cancelled_call_ends_over_there(connection: Connection) -> None:
    began, ended = threading.Event(), threading.Event()

    async def wait(_: Services) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    future = connection.call(wait)
    assert began.wait(DEADLINE_S)
    future.cancel()
    assert ended.wait(DEADLINE_S)


def test_a_stream_gives_every_item_in_order(connection: Connection) -> None:
    async def count(_: Services) -> AsyncIterator[int]:
        for number in range(1000):
            yield number

    with connection.stream(count) as items:
        assert list(items) == list(range(1000))


def test_a_stream_that_is_left_ends_its_source(connection: Connection) -> None:
    ended = threading.Event()

    async def forever(_: Services) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await checkpoint()
        finally:
            ended.set()

    with connection.stream(forever) as items:
        assert next(items) == 1
    assert ended.wait(DEADLINE_S)


def test_a_stream_waits_for_a_slow_reader(connection: Connection) -> None:
    made = 0

    async def count(_: Services) -> AsyncIterator[int]:
        nonlocal made
        while True:
            made += 1
            yield made

    with connection.stream(count) as items:
        next(items)
        connection.call(lambda services: anyio.sleep(0.05)).result()
        assert made < 1000


def test_a_streams_error_arrives_after_what_came_before_it(connection: Connection) -> None:
    async def broken(_: Services) -> AsyncIterator[int]:
        yield 1
        raise NotFoundError("gone")

    with connection.stream(broken) as items:
        assert next(items) == 1
        with pytest.raises(NotFoundError, match="gone"):
            next(items)


def test_two_connections_to_a_place_are_one(home: Home, connection: Connection) -> None:
    assert open_connection() is connection
    home.configure(places={"local": {**home.local, "emulated_gpus": 5}})
    other = open_connection()
    assert other is not connection
    other.close()


def test_a_closed_place_can_be_opened_again(home: Home) -> None:
    with connect() as gpu:
        assert gpu.place().capacity == {"nvidia.com/gpu": 2}
    with connect() as gpu:
        assert gpu.list() == []


def test_an_unknown_place_is_answered_by_those_there_are(home: Home) -> None:
    with pytest.raises(NotFoundError, match="there are: local"):
        jupyter_gpu.connect("moon")


def test_gpu_does_for_people_what_services_do(home: Home) -> None:
    with jupyter_gpu.connect() as gpu:
        home.submit(a_workload("w-1", gpus=1, command=program(["hello"])))
        with gpu.follow("w-1") as changes:
            assert list(changes)[-1].status.phase is Phase.SUCCEEDED
        assert [line.text for line in gpu.logs("w-1", follow=True) if line.text] == ["hello"]
        home.submit(a_workload("w-2"))
        assert gpu.cancel("w-2").spec.id == "w-2"
        assert {workload.spec.id for workload in gpu.list(ended=True)} == {"w-1", "w-2"}


def test_a_log_that_is_left_half_read_ends(home: Home) -> None:
    with jupyter_gpu.connect() as gpu:
        home.submit(a_workload("w-1", command=program(["one", "two"], seconds=60)))
        lines = gpu.logs("w-1", follow=True)
        assert next(line.text for line in lines if line.text) == "one"
        lines.close()  # type: ignore[attr-defined]
        gpu.cancel("w-1")


def test_a_forked_child_has_a_loop_of_its_own(home: Home, connection: Connection) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"failed"
        try:
            said = b"ok" if connect().place().capacity else b"empty"
        finally:
            os.write(write, said)
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "ok"
    os.waitpid(child, 0)


def test_a_process_ends_although_a_place_is_open(home: Home) -> None:
    code = "import jupyter_gpu; gpu = jupyter_gpu.connect(); print(gpu.place().name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "local\n", "")


def test_importing_the_package_loads_none_of_its_parts() -> None:
    parts = ("jupyter_gpu.", "pydantic", "anyio", "traitlets")
    code = f"import sys, jupyter_gpu; print([name for name in sys.modules if name.startswith({parts})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout == "[]\n"
