"""Stand-ins for a runner, and programs that a test writes down."""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest

from jupyter_gpu.backends import sending
from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.local import LocalBackend
from jupyter_gpu.backends.local.state import AttemptFolder, StateFolder
from jupyter_gpu.schema import LocalSettings, Phase, Workload, WorkloadStatus
from tests.builders import DEADLINE_S, until

Script = Callable[[str], tuple[str, ...]]


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder, as short as a real one."""
    with TemporaryDirectory(prefix="run-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def state(local_settings: LocalSettings) -> StateFolder:
    """The folder of the place."""
    assert local_settings.state_folder
    return StateFolder(local_settings.state_folder)


@pytest.fixture
def runner_that(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace the runner by a program of one's own; it ends when its folder is removed."""

    def replace(code: str) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("__main__.py", code)
        content = buffer.getvalue()
        monkeypatch.setattr(sending, "replica_zip", lambda *, compiled: (f"stand-in-{hash(content)}.zip", content))

    return replace


@pytest.fixture
def first_attempt(state: StateFolder) -> AttemptFolder:
    """The folder of the first attempt at ``w-1``."""
    return state.attempt("w-1", 1)


def python(code: str) -> tuple[str, ...]:
    """Return a command for a few lines of Python."""
    return (sys.executable, "-S", "-E", "-c", code)


async def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until something is true that no watch shows, and return it."""
    with anyio.fail_after(DEADLINE_S):
        while not (result := condition()):  # noqa: ASYNC110 - what it looks at sets no event
            await anyio.sleep(0.01)
        return result
    raise AssertionError("unreachable")


async def attempt_of(backend: Backend, id: str, attempt: int) -> WorkloadStatus:
    """Wait until an attempt at a Workload is RUNNING, and return how it stands then."""

    def there(workloads: Mapping[str, Workload]) -> WorkloadStatus | None:
        status = workloads[id].status
        return status if status.attempt == attempt and status.phase is Phase.RUNNING else None

    return await until(backend, there)


async def run_python(code: str, *arguments: str) -> int:
    """Run lines of Python in another process, and return what it ended with: minus the number of a signal."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = await anyio.run_process([sys.executable, "-c", code, *arguments], check=False, env=environment, stderr=None)
    return done.returncode


def is_alive(pid: int) -> bool:
    """Return whether a process is there and no mere zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def pids_with(marker: str) -> Iterator[int]:
    """Yield the processes whose command line or environment holds a text."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in told and int(folder.name) != os.getpid():
            yield int(folder.name)


def content_of(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    return dict(json.loads(path.read_text()))


def rows_of(backend: Backend) -> dict[str, int]:
    """Return how many rows each table of a place has that is about Workloads."""
    assert isinstance(backend, LocalBackend)
    assert backend._opened is not None
    store = backend._opened.site.store
    return {name: store.rows(f"SELECT count(*) FROM {name}")[0][0] for name in ("workloads", "attempts", "events", "usage")}


def now() -> datetime:
    """Return what the wall clock says."""
    return datetime.now(UTC)
