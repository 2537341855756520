"""The Keeper: it leads or leaves, steps when something changes, and ends when nothing waits."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.local import LocalBackend
from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.errors import BackendError, BackendUnavailableError
from jupyter_gpu.schema import LocalSettings, Phase
from jupyter_gpu.services import keeping
from jupyter_gpu.services.keeping import keep
from tests.builders import DEADLINE_S, a_workload, finished, phase_of, program
from tests.homes import Home


class _Scripted(MemoryBackend):
    """A place whose steps answer what a test says."""

    def __init__(self, *answers: datetime | Exception | None) -> None:
        super().__init__(gpus=1)
        self.answers = list(answers)

    async def tend(self, now: datetime) -> datetime | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Led(_Scripted):
    """One that has a Keeper already."""

    @asynccontextmanager
    async def keeper_leadership(self) -> AsyncIterator[bool]:
        yield False

    async def retire(self) -> bool:
        raise AssertionError("it was never the Keeper")

    async def changed(self) -> None:
        raise AssertionError("it was never the Keeper")


async def test_it_ends_when_nothing_waits() -> None:
    with anyio.fail_after(DEADLINE_S):
        assert await keep(_Scripted(datetime.now(UTC) + timedelta(seconds=0.01), None))


async def test_it_leaves_the_lead_to_another() -> None:
    assert not await keep(_Led())


async def test_it_steps_when_a_workload_changes_though_that_is_not_due() -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    backend = _Scripted(later, later, None)  # the first look at the workloads is a change too
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(keep, backend)
            await _until(lambda: len(backend.answers) == 1)
            await backend.submit(a_workload())


async def test_it_tries_again_where_the_place_is_in_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_TROUBLE_S", (0.001, 0.001))
    with anyio.fail_after(DEADLINE_S):
        assert await keep(_Scripted(BackendUnavailableError("away"), BackendUnavailableError("away"), None))


async def test_it_gives_up_where_the_trouble_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_TROUBLE_S", (0.001, 0.001))
    with anyio.fail_after(DEADLINE_S), pytest.raises(BackendError, match="away"):
        await keep(_Scripted(*[BackendUnavailableError("away")] * 3))


async def test_a_local_place_has_one_keeper_at_a_time(local_backend: Backend, second_local_backend: Backend) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    await local_backend.submit(a_workload("w-2", gpus=1, command=program()))
    async with anyio.create_task_group() as group:
        group.start_soon(keep, local_backend)
        await anyio.sleep(0.1)
        assert not await keep(second_local_backend)
        await local_backend.cancel("w-1", grace_s=0)
        await finished(second_local_backend, "w-2")
    assert await phase_of(local_backend, "w-2") is Phase.SUCCEEDED


async def test_a_killed_keeper_is_followed_by_another(home: Home) -> None:
    settings = LocalSettings.model_validate(home.local)
    command = (sys.executable, "-m", "jupyter_gpu", "keeper", "--name", "local", "--settings", settings.model_dump_json())
    async with LocalBackend("local", settings, keeper=command) as backend:
        await backend.submit(a_workload("w-1", gpus=2))
        await backend.submit(a_workload("w-2", gpus=1, command=program()))
        first = await _keeper(home.state)
        os.kill(first, signal.SIGKILL)
        await _until_gone(first)
        await backend.tend(datetime.now(UTC))
        second = await _keeper(home.state)
        assert second != first
        await backend.cancel("w-1", grace_s=0)
    # nobody looks any more but the Keeper
    await _until_gone(second)
    async with LocalBackend("local", settings) as backend:
        assert await phase_of(backend, "w-2") is not Phase.QUEUED


async def _keeper(state: Path) -> int:
    """Return the pid of the Keeper process of a local place, once there is one."""
    await _until(lambda: bool(_keepers(state)))
    return _keepers(state)[0]


def _keepers(state: Path) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"\0keeper\0" in words and str(state).encode() in words:
            found.append(int(folder.name))
    return found


async def _until_gone(pid: int) -> None:
    await _until(lambda: not _lives(pid))


async def _until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - another process does not set events here
            await anyio.sleep(0.02)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
