"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.connection import open_connection
from tests.builders import end_all
from tests.homes import Home, VirtualPlace


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Home]:
    """Jupyter's folders for this test alone, with a local place of two emulated devices; what runs there ends with the test."""
    made = Home(tmp_path, capsys)
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    made.configure()
    yield made
    if made.state.exists():
        made.configure()
        connection = open_connection()
        connection.call(lambda services: end_all(services.backend)).result()
        connection.close()


@pytest.fixture
def virtual(home: Home, monkeypatch: pytest.MonkeyPatch) -> VirtualPlace:
    """A place of virtual time behind the command line."""
    backend = MemoryBackend("local", gpus=4)
    monkeypatch.setattr("jupyter_gpu.connection.make_backend", lambda name, settings: backend)
    return VirtualPlace(home, backend)
