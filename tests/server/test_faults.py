"""What may go wrong between a client, a kernel's parent and the place: one test per fault, each seen once in the making."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from jupyter_client.manager import AsyncKernelManager

import jupyter_gpu
from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import BackendUnavailableError, ConflictError, InvalidRequestError, NotFoundError, WorkloadFailedError
from jupyter_gpu.schema import LocalSettings, Phase
from jupyter_gpu.services.kernel_requests import kernel_ports
from jupyter_gpu.services.kernels import Kernels
from tests.builders import DEADLINE_S, a_workload, finished, phase_of, reached, running, shown, status_of, until
from tests.builders import a_kernel as a_kernel_spec
from tests.server.conftest import ASite, a_kernel

KEYS = {"key": "0123456789abcdef"}
IPYKERNEL = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")


def a_real_kernel(id: str = "k-1", **changes: object) -> object:
    """Return a request for a kernel that can be talked to."""
    return a_kernel_spec(id, **{"command": IPYKERNEL, "ports": kernel_ports(), "secrets": ("key",), "grace_s": 1.0, **changes})


async def test_an_adoption_that_fails_leaves_the_kernel_to_who_has_it(
    local_backend: Backend, second_local_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Kernels(local_backend)
    kernel = await first.launch(a_real_kernel(), secrets=KEYS)

    @asynccontextmanager
    async def fails(id: str) -> AsyncIterator[None]:
        raise BackendUnavailableError("away for a moment")
        yield

    monkeypatch.setattr(second_local_backend, "hold", fails)
    with pytest.raises(BackendUnavailableError):
        await Kernels(second_local_backend).launch(a_real_kernel(), secrets={"key": "another"})
    assert await phase_of(local_backend, "k-1") is Phase.RUNNING
    assert kernel.exit_code is None
    await kernel.end()


async def test_a_kernel_that_never_listens_ends_with_its_reason(local_backend: Backend) -> None:
    spec = a_real_kernel(command=("sleep", "1000"), start_timeout_s=1.0)
    with pytest.raises(WorkloadFailedError, match="did not listen"):
        await Kernels(local_backend).launch(spec, secrets=KEYS)
    status = await finished(local_backend, "k-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "start.timeout"


@pytest.mark.parametrize(
    "fields", [{"op": "signal", "signum": 999}, {"op": "signal"}, {"op": "nonsense"}, {"op": "signal", "signum": "x"}]
)
async def test_a_bad_request_is_answered_and_hurts_nobody(local_backend: Backend, fields: dict[str, object]) -> None:
    kernel = await Kernels(local_backend).launch(a_real_kernel(), secrets=KEYS)
    assert kernel._channel
    with pytest.raises(ConflictError):
        await kernel._channel.request(str(fields["op"]), timeout_s=10, **{k: v for k, v in fields.items() if k != "op"})
    assert kernel.exit_code is None
    await kernel.spawn(command=list(IPYKERNEL), variables={})
    await kernel.end()


async def test_what_a_program_submits_outlives_it(local_backend: Backend, local_settings: object) -> None:
    code = (
        "import sys, anyio\n"
        "from jupyter_gpu.backends.local import LocalBackend\n"
        "from jupyter_gpu.schema import LocalSettings\n"
        "from tests.builders import a_workload\n"
        "async def main():\n"
        "    async with LocalBackend('local', LocalSettings.model_validate_json(sys.argv[1])) as backend:\n"
        "        await backend.submit(a_workload('inner'))\n"
        "anyio.run(main)\n"
    )
    outer = a_workload("outer", command=(sys.executable, "-c", code, local_settings.model_dump_json()))  # type: ignore[attr-defined]
    await local_backend.submit(outer)
    assert (await finished(local_backend, "outer")).phase is Phase.SUCCEEDED
    await running(local_backend, "inner")
    await local_backend.cancel("inner")
    assert (await finished(local_backend, "inner")).phase is Phase.CANCELLED


async def test_the_wish_that_came_first_is_the_reason(local_backend: Backend) -> None:
    spec = a_workload("w-1", max_runtime_s=1.5, grace_s=3.0, command=("python3", "-c", _STUBBORN))
    await local_backend.submit(spec)
    async for line in local_backend.logs("w-1", follow=True):
        if line.text == "up":
            break
    await local_backend.cancel("w-1")
    status = await finished(local_backend, "w-1")
    assert (status.phase, status.reason and status.reason.code) == (Phase.CANCELLED, "end.cancelled")


_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


@pytest.mark.parametrize("site", ["local"], indirect=True)
async def test_closing_one_connection_leaves_the_others_of_the_process(site: ASite) -> None:
    async with a_kernel() as kernel:
        with jupyter_gpu.connect() as gpu:
            ids = await asyncio.to_thread(lambda: [workload.spec.id for workload in gpu.list()])
        assert ids == [kernel.manager.kernel_id]
        assert await kernel.manager.is_alive()
        assert await kernel.run("print(1)") == "1"


@pytest.mark.parametrize("site", ["local"], indirect=True)
async def test_a_restart_brings_nothing_of_the_servers_environment(site: ASite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "old")
    async with a_kernel() as kernel:
        await kernel.manager.shutdown_kernel(restart=True)
        monkeypatch.setenv("A_TOKEN", "new")
        await kernel.manager.start_kernel(env={**os.environ, "A_TOKEN": "old"})  # as jupyter_client replays the first launch
        await kernel.ready()
        assert await kernel.run("import os; print(os.environ.get('A_TOKEN'))") == "None"


async def test_a_kernel_that_cant_be_started_again_says_why(local_backend: Backend) -> None:
    kernel = await Kernels(local_backend).launch(a_real_kernel(), secrets=KEYS)
    with pytest.raises(WorkloadFailedError, match="/nowhere/python"):
        await kernel.spawn(command=["/nowhere/python"], variables={})
    await finished(local_backend, "k-1")
    assert (await status_of(local_backend, "k-1")).phase is Phase.FAILED
    await kernel.aclose()


@pytest.mark.parametrize("site", ["local"], indirect=True)
@pytest.mark.parametrize("value", ["x\0y", "\udcff"])
async def test_a_variable_that_cant_be_written_is_refused(site: ASite, value: str) -> None:
    manager = AsyncKernelManager(kernel_name="gpu")
    with pytest.raises(InvalidRequestError, match=r"environment\.variables\.A"):
        await manager.start_kernel(env={**os.environ, "A": value})
    assert await asyncio.to_thread(lambda: site.connect().list(ended=True)) == []


async def test_one_story_that_cant_be_read_hides_no_other(local_backend: Backend, local_settings: LocalSettings) -> None:
    for id in ("w-1", "w-2"):
        await local_backend.submit(a_workload(id, command=("python3", "-c", "")))
        await finished(local_backend, id)
    spoil = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit()"
    statement = "UPDATE workloads SET spec = replace(spec, '\"batch\"', '\"nonsense\"'), version = version + 1 WHERE id = 'w-1'"
    assert local_settings.state_folder
    await anyio.run_process([sys.executable, "-c", spoil, str(local_settings.state_folder / "store.db"), statement])
    assert list(await shown(local_backend)) == ["w-2"]


@pytest.mark.parametrize("site", ["local"], indirect=True)
async def test_a_restart_leaves_our_marks_as_they_are(site: ASite) -> None:
    async with a_kernel() as kernel:
        look = "import os; print(os.environ['JUPYTER_GPU_WORKLOAD'])"
        marked = await kernel.run(look)
        held = kernel.manager.provisioner._kernel
        variables = {"JUPYTER_GPU_WORKLOAD": "somebody else's"}
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        await asyncio.wrap_future(
            kernel.manager.provisioner._connection.call(lambda _: held.spawn(command=command, variables=variables))
        )
        await kernel.ready()
        assert await kernel.run(look) == marked


async def test_a_kernel_whose_place_was_removed_is_lost(
    local_backend: Backend, second_local_backend: Backend, local_settings: LocalSettings
) -> None:
    await local_backend.submit(a_workload("w-1", gpus=2))
    kernels = Kernels(local_backend)

    async def launch() -> None:
        with pytest.raises(WorkloadFailedError, match="knows nothing of it any more"):
            await kernels.launch(a_real_kernel(gpus=1), secrets=KEYS)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(launch)
            await reached(second_local_backend, "k-1", Phase.QUEUED)
            await until(second_local_backend, lambda _: any(kernel.workload for kernel in kernels._kernels))
            assert local_settings.state_folder
            shutil.rmtree(local_settings.state_folder)
    assert await shown(local_backend) == {}


async def test_a_kernel_that_was_let_go_is_not_started_again_and_opens_nothing(
    local_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = await Kernels(local_backend).launch(a_real_kernel(), secrets=KEYS)
    await kernel.aclose()
    opened = []
    monkeypatch.setattr(local_backend, "open_port", lambda *_, **options: opened.append(options["port"]))
    with pytest.raises(NotFoundError):
        await kernel.spawn(command=list(IPYKERNEL), variables={})
    assert not opened
    await local_backend.cancel("k-1", grace_s=0)
    await finished(local_backend, "k-1")
