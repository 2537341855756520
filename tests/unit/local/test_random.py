"""Random deaths of everything that can die. JUPYTER_GPU_SOAK_ROUNDS makes it as long as one likes."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import Popen

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.local.state import StateFolder
from jupyter_gpu.schema import LocalSettings, Phase
from tests.builders import end_all, shown, until
from tests.unit.local.conftest import pids_with

ROUNDS = int(os.environ.get("JUPYTER_GPU_SOAK_ROUNDS", "20"))

CLIENT = """
import random, sys, anyio
from jupyter_gpu.backends.local import LocalBackend
from jupyter_gpu.errors import ConflictError, NotFoundError
from jupyter_gpu.schema import LocalSettings
from tests.builders import a_workload

settings, seed = LocalSettings.model_validate_json(sys.argv[1]), int(sys.argv[2])
dice = random.Random(seed)
FORKS = "import os, sys, time; os.fork(); time.sleep(float(sys.argv[1]))"

def anything(id):
    command = (sys.executable, "-S", "-E", "-c", FORKS, str(dice.random() / 2))
    times = {"grace_s": dice.random(), "ttl_s": dice.choice([0, 99])}
    return a_workload(id, gpus=dice.randrange(3), priority=dice.randrange(2), command=command, **times)

async def act(backend, id):
    if dice.random() < 0.6:
        await backend.submit(anything(id))
    elif dice.random() < 0.6:
        await backend.cancel(id)
    else:
        async with backend.hold(id):
            await anyio.sleep(dice.random() / 5)

async def main():
    async with LocalBackend("local", settings) as backend:
        while True:
            try:
                await act(backend, f"w-{dice.randrange(20)}")
            except (ConflictError, NotFoundError):
                pass
            await anyio.sleep(dice.random() / 20)

anyio.run(main)
"""


@pytest.fixture
def clients(local_settings: LocalSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Popen[bytes]]]:
    """Two processes that submit, cancel and hold whatever comes to their mind."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    with ExitStack() as stack:
        started = [Popen([sys.executable, "-c", CLIENT, local_settings.model_dump_json(), str(seed)]) for seed in range(2)]
        for client in started:
            stack.enter_context(client)
            stack.callback(client.kill)
        yield started


async def test_no_device_is_ever_given_twice_and_nothing_is_left(
    local_backend: Backend, state: StateFolder, clients: list[Popen[bytes]]
) -> None:
    dice = random.Random(0)
    await until(local_backend, lambda workloads: len(workloads) > 3)
    for _ in range(ROUNDS):
        await anyio.sleep(dice.random() / 5)
        held = [
            workload
            for workload in (await shown(local_backend)).values()
            if workload.status.phase in (Phase.STARTING, Phase.RUNNING)
        ]
        devices = [device for workload in held for device in workload.status.replicas[0].devices]
        assert len(devices) == len(set(devices)) == sum(workload.spec.resources.gpus for workload in held)
        assert all(client.poll() is None for client in clients)
        if victims := list(pids_with(f"JUPYTER_GPU_STATE={state.path}")):
            with suppress(ProcessLookupError):
                os.kill(dice.choice(victims), signal.SIGKILL)
    for client in clients:
        client.kill()  # wherever it is just now
    await end_all(local_backend)
    assert (await local_backend.describe()).free == {"nvidia.com/gpu": 2}
    assert not list(pids_with(f"JUPYTER_GPU_STATE={state.path}"))
    check = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('PRAGMA integrity_check').fetchone())"
    assert (await anyio.run_process([sys.executable, "-c", check, str(state.store)])).stdout.decode() == "('ok',)\n"
