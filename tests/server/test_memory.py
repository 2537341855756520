"""A kernel that wants too much memory dies alone, says of what, and is there again."""

from __future__ import annotations

import asyncio
import logging
import re
import sys

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import WorkloadFailedError
from jupyter_gpu.schema import MiB, Resources
from jupyter_gpu.services.kernel_requests import kernel_ports
from jupyter_gpu.services.kernels import Kernels
from tests.builders import DEADLINE_S, finished, log_of, reports
from tests.builders import a_kernel as a_kernel_spec
from tests.server.conftest import ASite, a_kernel

KEYS = {"key": "0123456789abcdef"}
IPYKERNEL = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
LIMIT_MIB = 300
TOO_MUCH = f"held = bytearray(b'1') * ({LIMIT_MIB} << 20)"


@pytest.mark.parametrize("site", ["local"], indirect=True)
async def test_a_kernel_above_its_limit_says_so_and_is_started_again_in_place(
    site: ASite, caplog: pytest.LogCaptureFixture
) -> None:
    site.write(resources={"gpus": 1, "memory_bytes": LIMIT_MIB * MiB})
    async with a_kernel() as kernel:
        device = await kernel.run("import os; print(os.environ['JUPYTER_GPU_DEVICES'])")
        kernel.client.execute(TOO_MUCH)
        with caplog.at_level(logging.WARNING):
            with anyio.fail_after(DEADLINE_S):
                while await kernel.manager.is_alive():  # noqa: ASYNC110 - as Jupyter's restarter asks
                    await anyio.sleep(0.05)
        assert re.search(rf"its limit of {LIMIT_MIB} MiB: ask for more \(memory: (384|512) MiB\)", caplog.text)
        await kernel.manager.restart_kernel(now=True)
        await kernel.ready()
        assert await kernel.run("import os; print(os.environ['JUPYTER_GPU_DEVICES'], 'held' in globals())") == f"{device} False"
        told = await asyncio.to_thread(lambda: site.connect().list())
        assert told[0].status.attempt == 1


async def test_what_it_died_of_stands_in_its_log(local_backend: Backend) -> None:
    spec = a_kernel_spec(
        command=(sys.executable, "-c", TOO_MUCH + "; import time; time.sleep(60)"),
        ports=kernel_ports(),
        secrets=("key",),
        relaunch_within_s=0.1,
        resources=Resources(memory_bytes=LIMIT_MIB * MiB),
    )
    with pytest.raises(WorkloadFailedError, match="its limit of"):
        await Kernels(local_backend).launch(spec, secrets=KEYS)
    status = await finished(local_backend, spec.id)
    assert status.reason
    assert status.reason.code == "end.out_of_memory"
    assert status.reason.facts["limit_bytes"] == LIMIT_MIB * MiB
    (death,) = reports(await log_of(local_backend, spec.id), "kernel")
    assert (death["code"], death["facts"]["limit_bytes"]) == ("end.out_of_memory", LIMIT_MIB * MiB)
