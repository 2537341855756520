"""The places that need nothing but this machine, and what every test is held to."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.schema import LocalSettings
from tests.builders import MARKER, end_all

_GONE_WITHIN_S = 5.0


@pytest.fixture
def memory_backend() -> MemoryBackend:
    """A place of virtual time with two devices."""
    return MemoryBackend(gpus=2)


@pytest.fixture
def second_memory_backend(memory_backend: MemoryBackend) -> MemoryBackend:
    """Another client of the same place."""
    return memory_backend.client()


@pytest.fixture
def local_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalSettings:
    """A local place with two devices that do not exist; ``python3`` is the one that runs the tests, as in an activated venv."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return LocalSettings(state_folder=tmp_path / "state", emulated_gpus=2)


@pytest.fixture
async def local_backend(local_settings: LocalSettings) -> AsyncIterator[Backend]:
    """A local place; whatever runs there ends with the test."""
    from jupyter_gpu.backends.local import LocalBackend

    async with LocalBackend("local", local_settings) as backend:
        yield backend
        await end_all(backend)


@pytest.fixture
async def second_local_backend(local_backend: Backend, local_settings: LocalSettings) -> AsyncIterator[Backend]:
    """Another client of the same place."""
    from jupyter_gpu.backends.local import LocalBackend

    async with LocalBackend("local", local_settings) as backend:
        yield backend


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail when a process is alive that tests started: by the marker of their programs, or by their folder."""
    yield
    marks = (str(tmp_path_factory.getbasetemp()).encode(), "=".join(MARKER).encode() + b"\0")
    deadline = time.monotonic() + _GONE_WITHIN_S
    while (left := _processes_with(marks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"these processes were left behind: {left}"


def _processes_with(marks: tuple[bytes, ...]) -> dict[int, str]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment, words = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile, or belongs to somebody else
        if words and any(mark in environment or mark in words for mark in marks):
            found[int(folder.name)] = words.replace(b"\0", b" ").decode(errors="replace")[:200]
    return found
