"""A kernel that must make room is told, and can be used until then; one whose end is wished ends at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from anyio.abc import Process

from jupyter_gpu.backends.base import Backend, UnixAddress
from jupyter_gpu.schema import Phase, Reason
from jupyter_gpu.services.kernel_requests import CHANNELS, kernel_ports
from jupyter_gpu.services.kernels import Kernels
from jupyter_gpu.services.parent_channel import ParentChannel
from tests.builders import DEADLINE_S, MARKER, finished
from tests.builders import a_kernel as a_kernel_spec
from tests.server.conftest import ASite, a_kernel

KEYS = {"key": "0123456789abcdef"}
IPYKERNEL = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
POD = "import sys; from jupyter_gpu.replica import report, run; report.TERMINATION_LOG = sys.argv[1]; run.main()"


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is true that nobody tells."""
    with anyio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what it looks at sets no event
            await anyio.sleep(0.01)


@pytest.mark.parametrize("site", ["local"], indirect=True)
async def test_a_kernel_that_must_yield_is_told_and_can_be_used_until_then(site: ASite) -> None:
    async with a_kernel() as kernel:
        await kernel.run("x = 42")
        held = kernel.manager.provisioner._kernel
        assert held.state["stopping"] is None
        words = Reason(code="end.preempted", message="it must yield to vision/train")
        connection = kernel.manager.provisioner._connection
        begin = connection.call(lambda services: services.backend.cancel(held.id, reason=words, grace_s=6))
        await asyncio.wrap_future(begin)
        await until(lambda: held.state.get("stopping"))
        assert held.state["stopping"] == {"code": "end.preempted", "message": "it must yield to vision/train"}
        assert 0 < held.state["ends_in_s"] <= 6
        assert await kernel.run("print(x)") == "42"
        await until(lambda: held.workload.status.phase.is_final)
        assert held.workload.status.phase is Phase.FAILED
        assert held.workload.status.reason.code == "end.preempted"


async def test_a_kernel_that_is_cancelled_ends_at_once(local_backend: Backend) -> None:
    spec = a_kernel_spec(command=IPYKERNEL, ports=kernel_ports(), secrets=("key",), grace_s=1000.0)
    kernel = await Kernels(local_backend).launch(spec, secrets=KEYS)
    await local_backend.cancel(spec.id)
    assert (await finished(local_backend, spec.id)).phase is Phase.CANCELLED
    await kernel.aclose()


async def test_a_kernel_that_must_yield_ends_at_once_when_it_is_cancelled(local_backend: Backend) -> None:
    spec = a_kernel_spec(command=IPYKERNEL, ports=kernel_ports(), secrets=("key",), grace_s=1000.0)
    kernel = await Kernels(local_backend).launch(spec, secrets=KEYS)
    await local_backend.cancel(spec.id, reason=Reason(code="end.preempted", message="it must yield"))
    await until(lambda: kernel.state.get("stopping"))
    assert kernel.exit_code is None
    await local_backend.cancel(spec.id)
    status = await finished(local_backend, spec.id)
    assert (status.phase, status.reason and status.reason.code) == (Phase.CANCELLED, "end.cancelled")
    await kernel.aclose()


@asynccontextmanager
async def a_parent_in_a_pod() -> AsyncIterator[tuple[Process, Callable[[], Mapping[str, Any]], ParentChannel]]:
    """Start the parent of a kernel as in a pod, without a folder of its own, and wait until its kernel listens."""
    states: list[Mapping[str, Any]] = []
    with TemporaryDirectory(prefix="pod-") as name, anyio.fail_after(DEADLINE_S):
        folder = Path(name)
        (folder / "secrets").write_text(json.dumps(KEYS))
        ports = {channel: str(folder / f"k-{number}") for number, channel in enumerate((*CHANNELS, "parent"), start=1)}
        spec = {
            **{"protocol": 1, "id": "k-1", "attempt": 1, "rank": 0, "kind": "kernel", "command": list(IPYKERNEL)},
            **{"variables": {}, "devices": [], "visible_variable": "CUDA_VISIBLE_DEVICES", "ports": ports, "grace_s": 4},
            **{"secrets": str(folder / "secrets"), "run_folder": str(folder / "run"), "relaunch_within_s": 60},
        }
        variables = {**os.environ, **dict([MARKER]), "JUPYTER_GPU_REPLICA": json.dumps(spec)}
        command = [sys.executable, "-c", POD, str(folder / "end")]
        channel = ParentChannel(UnixAddress(Path(ports["parent"])), KEYS, states.append)
        parent = await anyio.open_process(command, env=variables, stdout=subprocess.DEVNULL, stderr=None)
        async with anyio.create_task_group() as group:
            group.start_soon(channel.listen)
            await until(lambda: Path(ports["parent"]).exists())
            await channel.request("hello", timeout_s=DEADLINE_S)
            await until(lambda: states[-1]["kernel"]["state"] == "running")
            yield parent, lambda: states[-1], channel
            await parent.wait()
            group.cancel_scope.cancel()
        channel.close()
        assert json.loads((folder / "end").read_text())["code"] == "end.terminated"


async def test_in_a_pod_it_is_left_alone_whatever_the_reason() -> None:
    async with a_parent_in_a_pod() as (parent, state, channel):
        parent.send_signal(signal.SIGTERM)
        await until(lambda: state()["stopping"])
        assert state()["ends_in_s"] <= 4
        while state()["ends_in_s"] > 2:
            await channel.request("hello", timeout_s=DEADLINE_S)
        assert state()["kernel"]["state"] == "running"


async def test_in_a_pod_who_knows_better_ends_it_at_once() -> None:
    async with a_parent_in_a_pod() as (parent, state, channel):
        parent.send_signal(signal.SIGTERM)
        await until(lambda: state()["stopping"])
        await channel.request("signal", timeout_s=DEADLINE_S, signum=int(signal.SIGTERM))
        await until(lambda: state()["kernel"]["state"] == "exited")
        assert state()["ends_in_s"] > 1
