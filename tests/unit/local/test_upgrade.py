"""What the code of an earlier protocol wrote, and what it started, goes on under today's (`tests/fixtures/v1/make.py`)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
import zmq
from jupyter_client.asynchronous.client import AsyncKernelClient

from jupyter_gpu.backends.local import LocalBackend, clock, store
from jupyter_gpu.backends.local.devices import account
from jupyter_gpu.backends.local.state import AttemptFolder, StateFolder
from jupyter_gpu.errors import BackendError
from jupyter_gpu.schema import LocalSettings, Phase, WorkloadSpec
from jupyter_gpu.services.kernel import Kernel
from jupyter_gpu.services.kernels import Kernels
from tests.builders import DEADLINE_S, a_workload, end_all, finished, log_of, phase_of, running, shown, texts
from tests.unit.local.conftest import eventually, pids_with, python

_FIXTURE = Path(__file__).parents[2] / "fixtures" / "v1" / "state"
_ROOT_OF_V1, _OWNER_OF_V1 = "/tmp/jupyter-gpu-v1", "ana"


@dataclass(frozen=True)
class Left:
    """What the code of version 1 left behind, as if this machine and this account had run it."""

    root: Path

    @property
    def state(self) -> StateFolder:
        return StateFolder(self.root / "state")

    @property
    def settings(self) -> LocalSettings:
        return LocalSettings(state_folder=self.state.path, emulated_gpus=2)

    @property
    def kernel(self) -> AttemptFolder:
        return self.state.attempt("kernel", 1)


@pytest.fixture
def left() -> Iterator[Left]:
    """A copy of the fixture, in a place of its own; nothing of it outlives the test."""
    with TemporaryDirectory(prefix="v1-") as folder:
        root = Path(folder)
        shutil.copytree(_FIXTURE, root / "state")
        _move(root)
        for name in ("home", "run"):
            (root / name).mkdir(mode=0o700)
        (root / "code").symlink_to(Path(__file__).parents[3])
        (root / "site-packages").symlink_to(Path(zmq.__file__).parents[1])
        (root / "bin").mkdir()
        (root / "bin" / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (root / "bin" / "python3").chmod(0o700)
        yield Left(root)
        strays = list(pids_with(f"JUPYTER_GPU_STATE={root}"))
        for pid in pids_with(str(root)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not strays


def _move(root: Path) -> None:
    """Let the copy believe that it was always here, and belonged to this account."""
    names = {_ROOT_OF_V1: str(root), _socket_name(_ROOT_OF_V1): _socket_name(str(root))}
    for path in (root / "state").rglob("*.json"):
        text = path.read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        path.write_text(text)
    for table in ("workloads", "attempts"):
        _write(root, f"UPDATE {table} SET spec = json_set(replace(spec, ?, ?), '$.owner', ?)", _ROOT_OF_V1, str(root), account())
    _write(root, "UPDATE workloads SET owner = ?", account())


def _socket_name(root: str) -> str:
    return hashlib.sha256(f"{root}/state\0kernel\0001".encode()).hexdigest()[:16]  # as version 1 named it


def _write(root: Path, statement: str, *parameters: Any) -> None:
    """Write into the store while nobody has it open."""
    connection = sqlite3.connect(root / "state" / "store.db", isolation_level=None)
    connection.execute(statement, parameters)
    connection.close()


@pytest.fixture
async def backend(left: Left) -> AsyncIterator[LocalBackend]:
    """Today's code at the place of version 1."""
    async with LocalBackend("local", left.settings) as backend:
        yield backend
        await end_all(backend)


@pytest.fixture
def runner(left: Left) -> Iterator[subprocess.Popen[bytes]]:
    """The kernel, running: started by the zip, the specification and the way of version 1."""
    for path in (left.kernel.state, left.kernel.log):  # of its first life
        path.unlink()
    row = (clock.boot_id(), clock.boot_clock())
    _write(left.root, "UPDATE workloads SET boot_id = ?, admitted_boot_s = ? WHERE id = 'kernel'", *row)
    lock = os.open(left.kernel.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (archive,) = left.state.replicas.glob("*.zip")
    variables = {
        "JUPYTER_GPU_REPLICA": str(left.kernel.replica),
        "JUPYTER_GPU_LOCK_FD": str(lock),
        "JUPYTER_GPU_WORKLOAD": "kernel",
        "JUPYTER_GPU_ATTEMPT": "1",
        "JUPYTER_GPU_STATE": str(left.state.path),
    }
    with left.kernel.runner_log.open("ab") as log:
        runner = subprocess.Popen(
            [sys.executable, "-S", "-E", str(archive)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables,
            cwd="/",
            start_new_session=True,
            pass_fds=(lock,),
        )
    os.close(lock)
    yield runner
    runner.kill()
    runner.wait()


async def test_what_version_1_wrote_is_shown(backend: LocalBackend) -> None:
    workloads = await shown(backend)
    ended = {id: one.status for id, one in workloads.items() if id in ("succeeded", "failed", "cancelled")}
    told = {id: (status.phase, status.attempt, status.reason and status.reason.code) for id, status in ended.items()}
    assert told == {
        "succeeded": (Phase.SUCCEEDED, 2, "end.completed"),
        "failed": (Phase.FAILED, 1, "end.exit_code"),
        "cancelled": (Phase.CANCELLED, 1, "end.cancelled"),
    }
    assert set(workloads) - set(told) == {"kernel", "holds", "waits-1", "waits-2"}
    assert {id: one.spec.environment.variables for id, one in workloads.items()} == {id: {"FROM": "v1"} for id in workloads}
    assert texts(await log_of(backend, "succeeded", attempt=1)) == ["first attempt"]
    assert texts(await log_of(backend, "succeeded")) == ["second attempt"]


async def test_its_story_is_told_as_far_as_version_1_wrote_it(backend: LocalBackend) -> None:
    story = [(event.attempt, event.phase) for event in await backend.story("succeeded")]
    assert (1, Phase.FAILED) in story
    assert story[-1] == (2, Phase.SUCCEEDED)
    assert [event.time for event in await backend.story("succeeded")] == sorted(
        event.time for event in await backend.story("succeeded")
    )
    used = {(one.id, one.attempt): one.gpus for one in await backend.usage()}
    assert used[("succeeded", 1)] == used[("succeeded", 2)] == 1


async def test_what_was_cut_off_has_an_end_and_what_waited_starts(backend: LocalBackend) -> None:
    for id in ("kernel", "holds"):
        status = await finished(backend, id)
        assert status.phase is Phase.FAILED
        assert status.reason
        assert status.reason.code == "end.reboot"
    ends = {id: await finished(backend, id) for id in ("waits-1", "waits-2")}
    assert {status.phase for status in ends.values()} == {Phase.SUCCEEDED}
    assert ends["waits-2"].started and ends["waits-1"].started
    assert ends["waits-2"].started < ends["waits-1"].started  # by its priority
    assert texts(await log_of(backend, "waits-1")) == ["waited"]
    assert (await backend.describe()).free == {"nvidia.com/gpu": 2}


async def test_a_request_of_version_1_is_still_the_same_request(backend: LocalBackend, runner: subprocess.Popen[bytes]) -> None:
    await running(backend, "kernel")
    spec = (await shown(backend))["waits-1"].spec
    await backend.submit(WorkloadSpec.model_validate(spec.model_dump(exclude_defaults=True)))
    assert (await shown(backend))["waits-1"].status.attempt == 1


async def test_a_kernel_of_version_1_keeps_working(backend: LocalBackend, runner: subprocess.Popen[bytes], left: Left) -> None:
    await running(backend, "kernel")
    assert await backend.connection("kernel") == {"key": "00112233445566778899aabbccddeeff" * 2}
    assert (await backend.describe()).free == {"nvidia.com/gpu": 1}
    kernels = Kernels(backend)
    spec = (await shown(backend))["kernel"].spec
    kernel = await kernels.launch(spec, secrets={"key": "of nobody"})  # adoption is launch
    assert (kernel.state["protocol"], kernel.state["devices"]) == (1, ["GPU-emulated-0"])
    assert await _answer(kernel, "import os; x = os.environ['JUPYTER_GPU_DEVICES']") == ""
    assert await _answer(kernel, "print(x)") == "GPU-emulated-0\n"
    await kernel.spawn(command=list(spec.command), variables={"FROM": "today"})
    assert await _answer(kernel, "print('x' in globals(), os.environ['FROM'] if 'os' in globals() else 'anew')") == "False anew\n"
    assert await _answer(kernel, "import os; print(os.environ['FROM'])") == "today\n"
    assert await phase_of(backend, "waits-1") is Phase.QUEUED
    await kernels.end(kernel)
    await kernels.aclose()
    assert (await finished(backend, "kernel")).phase is Phase.SUCCEEDED
    # its last act was the command that version 1 gave it for the Keeper
    assert "nothing is left to do" in await eventually(left.kernel.runner_log.read_text)
    assert (await finished(backend, "waits-1")).phase is Phase.SUCCEEDED


@pytest.fixture
def keeper(left: Left) -> Iterator[subprocess.Popen[bytes]]:
    """What stands for a Keeper of version 1: it has the lock, into whose file version 1 writes nothing, and waits."""
    left.state.keeper_lock.write_text("2 4194305")  # of one of today that was killed; there is no such pid
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, 2); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, str(left.state.keeper_lock)], stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout
        keeper.stdout.readline()
        yield keeper
        keeper.kill()


async def test_a_keeper_of_version_1_which_can_not_write_any_more_gives_way(
    backend: LocalBackend, keeper: subprocess.Popen[bytes]
) -> None:
    async with backend.keeper_leadership() as leads:
        assert leads
        assert keeper.wait(DEADLINE_S) == -signal.SIGKILL


async def test_one_of_today_takes_its_place_as_soon_as_somebody_looks_at_what_waits(
    left: Left, runner: subprocess.Popen[bytes], keeper: subprocess.Popen[bytes]
) -> None:
    command = (*python("import time; time.sleep(600)"), str(left.root))  # it holds the lock that it is handed
    async with LocalBackend("local", left.settings, keeper=command) as backend:
        await backend.describe()
        assert await phase_of(backend, "waits-1") is Phase.QUEUED
        assert keeper.wait(DEADLINE_S) == -signal.SIGKILL
        async with backend.keeper_leadership() as leads:
            assert not leads
        await end_all(backend)


async def _answer(kernel: Kernel, code: str) -> str:
    """Run a cell and return what it printed."""
    client = AsyncKernelClient()
    client.load_connection_info(kernel.connection_info)
    client.start_channels()
    try:
        printed: list[str] = []

        def take(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        with anyio.fail_after(DEADLINE_S):
            await client.wait_for_ready(timeout=DEADLINE_S)
            reply = await client.execute_interactive(code, output_hook=take, timeout=DEADLINE_S)
        assert reply["content"]["status"] == "ok"
        return "".join(printed)
    finally:
        client.stop_channels()


async def test_code_of_version_1_reads_the_store_of_today_and_refuses_to_write(
    backend: LocalBackend, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await phase_of(backend, "succeeded") is Phase.SUCCEEDED  # it is of today now
    for id in ("kernel", "holds", "waits-1", "waits-2"):
        await finished(backend, id)
    monkeypatch.setattr(store, "MIGRATIONS", store.MIGRATIONS[:1])
    async with LocalBackend("local", left.settings) as older:
        assert await phase_of(older, "succeeded") is Phase.SUCCEEDED
        with pytest.raises(BackendError, match=r"newer jupyter-gpu \(its version is 2, this one knows 1\).*after an upgrade"):
            await older.submit(a_workload("w-1"))
        with pytest.raises(BackendError, match="newer"):
            await older.cancel("failed")
    monkeypatch.undo()
    assert "w-1" not in await shown(backend)
