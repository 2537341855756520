"""One suite, all places: `backend` is each of them in turn."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.errors import ConflictError
from tests.builders import DEADLINE_S
from tests.contract.places import ALL

_HOLDER = Path(__file__).with_name("holder.py")


@pytest.fixture(params=ALL)
def backend(request: pytest.FixtureRequest) -> Backend:
    """A place with two devices of nvidia.com/gpu, and nobody there."""
    return request.getfixturevalue(f"{request.param}_backend")


@pytest.fixture
def second_client(request: pytest.FixtureRequest, backend: Backend) -> Backend:
    """Another Backend object at the same place."""
    return request.getfixturevalue(f"second_{request.node.callspec.params['backend']}_backend")


@dataclass(frozen=True)
class Holder:
    """Another process that holds a Workload, and may die."""

    name: str
    """What an error must name it by."""
    die: Callable[[], Awaitable[None]]


@pytest.fixture
def another_process_holds(backend: Backend, request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """An async context manager: while it is open, another process holds the Workload of this id, unless it dies.

    Raises:
        ConflictError: that process could not have it.
    """

    @asynccontextmanager
    async def virtual(id: str) -> AsyncIterator[Holder]:
        assert isinstance(backend, MemoryBackend)
        other = backend.client()

        async def die() -> None:
            other.die()

        async with other.hold(id):
            yield Holder("client 2", die)

    @asynccontextmanager
    async def real(id: str) -> AsyncIterator[Holder]:
        place = request.node.callspec.params["backend"]
        settings = request.getfixturevalue(f"{place}_settings").model_dump_json()
        async with await anyio.open_process([sys.executable, str(_HOLDER), settings, id], stderr=None) as process:

            async def die() -> None:
                with suppress(ProcessLookupError):  # it has ended
                    process.kill()
                await process.wait()

            try:
                assert process.stdout
                with anyio.fail_after(DEADLINE_S):
                    answer = (await process.stdout.receive()).decode().strip()
                if answer != "held":
                    raise ConflictError(answer)
                yield Holder(str(process.pid), die)
            finally:
                await die()

    return virtual if isinstance(backend, MemoryBackend) else real


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Fail a test whose backend calls, on the event loop's thread, what may take long."""
    calls: list[tuple[Any, str]] = [(time, "sleep"), (subprocess.Popen, "wait"), (subprocess.Popen, "communicate")]
    if "memory_backend" in request.fixturenames or "memory" in str(getattr(request.node, "callspec", "")):
        calls += [(sqlite3, "connect"), (subprocess, "Popen"), (Path, "open"), (Path, "read_bytes"), (Path, "write_bytes")]
    for owner, name in calls:
        monkeypatch.setattr(owner, name, _refused_on_a_loop(getattr(owner, name), name))


def _refused_on_a_loop(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if asyncio._get_running_loop() is not None:
            pytest.fail(f"{name} was called on the event loop, and blocks it")
        return call(*args, **kwargs)

    return guarded
