"""GPU kernels as Jupyter starts them, on each place: one test per promise."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager

from jupyter_gpu.backends.local.sockets import socket_folder
from jupyter_gpu.schema import LocalSettings, Phase, Workload
from tests.cluster.plugin import Admin
from tests.server.conftest import ASite, a_kernel

DEADLINE_S = 60.0
WHERE = "import os; print(os.environ['JUPYTER_GPU_DEVICES'], os.getpid(), os.getppid())"


async def eventually(check: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Wait until something is true, and return it."""
    with anyio.move_on_after(deadline_s):
        while True:
            found = check()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
            await anyio.sleep(0.05)
    raise AssertionError(f"{what}: not within {deadline_s:g} s")


async def workloads(site: ASite, *, ended: bool = False) -> list[Workload]:
    """Return what the place shows, without blocking this loop."""
    gpu = site.connect()
    return await asyncio.wrap_future(gpu.connection.call(lambda services: services.workloads.all(ended=ended)))


async def jupyter_gpu(*words: str) -> tuple[int, str, str]:
    """Run the command line as a person would."""
    process = await anyio.run_process([sys.executable, "-m", "jupyter_gpu", *words], check=False)
    return process.returncode, process.stdout.decode(), process.stderr.decode()


async def test_the_device_a_cell_sees_is_one_that_the_place_gave(site: ASite) -> None:
    async with a_kernel() as kernel:
        device = (await kernel.run(WHERE)).split()[0]
        assert device in await given_devices(site, kernel.manager.kernel_id)


async def given_devices(site: ASite, id: str) -> list[str]:
    """Return the devices of a Workload: by its status where the place tells them, and by its started report."""
    gpu = site.connect()
    reports = await asyncio.wrap_future(gpu.connection.call(lambda services: services.workloads.reports(id)))
    told = next(line.report["devices"] for line in reports if line.report and line.report["report"] == "started")
    (workload,) = [w for w in await workloads(site) if w.spec.id == id]
    if isinstance(site.settings, LocalSettings):
        place = await asyncio.wrap_future(gpu.connection.call(lambda services: services.workloads.place()))
        assert told == [device.id for device in place.devices if device.holder == id]
        assert tuple(told) == workload.status.replicas[0].devices
    else:
        assert all(re.fullmatch(r"GPU-[0-9a-f-]+", device) for device in told)
    assert len(told) == workload.spec.resources.gpus
    return told


async def test_a_restart_keeps_the_parent_and_the_device(site: ASite) -> None:
    async with a_kernel() as kernel:
        await kernel.run("x = 1")
        device, pid, parent = (await kernel.run(WHERE)).split()
        node = await kernel.run("import socket; print(socket.gethostname())")
        await kernel.manager.restart_kernel()
        await kernel.ready()
        assert await kernel.run("print('x' in globals())") == "False"
        device_after, pid_after, parent_after = (await kernel.run(WHERE)).split()
        assert (device_after, parent_after) == (device, parent)
        assert pid_after != pid
        assert await kernel.run("import socket; print(socket.gethostname())") == node
        (workload,) = await workloads(site)
        assert workload.status.attempt == 1


async def test_a_kernel_is_restarted_many_times(site: ASite) -> None:
    async with a_kernel() as kernel:
        _, _, parent = (await kernel.run(WHERE)).split()
        for now in (True, False, True):
            await kernel.manager.restart_kernel(now=now)
            await kernel.ready()
        assert (await kernel.run(WHERE)).split()[2] == parent


async def test_an_endless_cell_is_interrupted(site: ASite) -> None:
    async with a_kernel() as kernel:
        id = kernel.client.execute("print('begun')\nwhile True: pass")
        while (await kernel.client.get_iopub_msg(timeout=DEADLINE_S))["msg_type"] != "stream":
            pass
        await kernel.manager.interrupt_kernel()
        while (reply := await kernel.client.get_shell_msg(timeout=DEADLINE_S))["parent_header"].get("msg_id") != id:
            pass
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert await kernel.run("print(1)") == "1"


@pytest.mark.parametrize(
    ("death", "code", "words"),
    [
        ("import os; os._exit(3)", 3, "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, "SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", -11, "SIGSEGV"),
    ],
)
async def test_a_death_is_reported_as_what_it_was(site: ASite, death: str, code: int, words: str) -> None:
    site.write(grace_s=2)
    async with a_kernel() as kernel:
        id = kernel.manager.kernel_id
        kernel.client.execute(death)
        await eventually(lambda: _is_dead(kernel.manager), "the kernel is seen dead")
        assert await kernel.manager.provisioner.poll() == code
    workload = await eventually(lambda: _ended(site, id), "the workload ends")
    assert workload.status.phase is Phase.FAILED
    assert words in workload.status.reason.message
    assert words in (await jupyter_gpu("show", id))[1]


async def _is_dead(manager: AsyncKernelManager) -> bool:
    return not await manager.is_alive()


async def _ended(site: ASite, id: str) -> Workload | None:
    return next((w for w in await workloads(site, ended=True) if w.spec.id == id and w.status.phase.is_final), None)


async def test_a_kernel_that_died_is_restarted_on_its_device(site: ASite) -> None:
    async with a_kernel() as kernel:
        device, _, parent = (await kernel.run(WHERE)).split()
        kernel.client.execute("import os; os._exit(3)")
        await eventually(lambda: _is_dead(kernel.manager), "the kernel is seen dead")
        await kernel.manager.restart_kernel()
        await kernel.ready()
        device_after, _, parent_after = (await kernel.run(WHERE)).split()
        assert (device_after, parent_after) == (device, parent)


async def test_a_kernel_whose_workload_ended_comes_back_as_a_new_attempt(site: ASite) -> None:
    async with a_kernel() as kernel:
        id = kernel.manager.kernel_id
        code, said, _ = await jupyter_gpu("cancel", id)
        assert code == 0, said
        await eventually(lambda: _ended(site, id), "the workload ends")
        assert not await kernel.manager.is_alive()
        await kernel.manager.restart_kernel()
        kernel.client.stop_channels()
        kernel.client = kernel.manager.client()
        kernel.client.start_channels()
        await kernel.ready()
        assert await kernel.run("print(1)") == "1"
        (workload,) = [w for w in await workloads(site) if w.spec.id == id]
        assert workload.status.attempt == 2


async def test_a_normal_end_is_a_success(site: ASite) -> None:
    async with a_kernel() as kernel:
        id = kernel.manager.kernel_id
        await kernel.manager.shutdown_kernel()
    workload = await eventually(lambda: _ended(site, id), "the workload ends")
    assert workload.status.phase is Phase.SUCCEEDED


async def test_a_second_launch_of_an_id_takes_up_the_kernel_that_lives(site: ASite) -> None:
    async with a_kernel() as kernel:
        await kernel.run("x = 41")
        pid = (await kernel.run(WHERE)).split()[1]
        provisioner = kernel.manager.provisioner
        await asyncio.wrap_future(provisioner._connection.call(lambda _: provisioner._kernel.aclose()))  # as a crash would
        async with a_kernel(kernel_id=kernel.manager.kernel_id) as adopted:
            assert await adopted.run("print(x + 1)") == "42"
            assert (await adopted.run(WHERE)).split()[1] == pid


async def test_the_second_waits_for_the_only_device_and_is_cancelled_without_a_trace(site: ASite, request: Any) -> None:
    site.write(resources={"gpus": 2, "cpus": 0.1, "memory_bytes": "512MiB"})  # all that the place has
    async with a_kernel():
        waiting = AsyncKernelManager(kernel_name="gpu")
        launch = asyncio.create_task(waiting.start_kernel())
        queued = await eventually(lambda: _queued(site), "the second is queued")
        assert "nvidia.com/gpu" in queued.status.reason.message
        code, said, _ = await jupyter_gpu("cancel", queued.spec.id)
        assert code == 0, said
        with pytest.raises(Exception, match="cancelled"):
            await launch
        await nothing_is_left(site, queued.spec.id, request)


async def _queued(site: ASite) -> Workload | None:
    return next((w for w in await workloads(site) if w.status.phase is Phase.QUEUED), None)


async def test_a_killed_client_leaves_nothing_in_the_queue(site: ASite, request: Any) -> None:
    site.write(resources={"gpus": 2, "cpus": 0.1, "memory_bytes": "512MiB"}, orphan_after_s=2)
    code = f"from jupyter_client.manager import start_new_kernel; start_new_kernel(kernel_name='gpu', kernel_id={str(uuid4())!r})"
    async with a_kernel():
        client = await anyio.open_process([sys.executable, "-c", code], stderr=None)
        async with client:
            queued = await eventually(lambda: _queued(site), "the second is queued")
            client.send_signal(signal.SIGKILL)
            await client.wait()
        if isinstance(site.settings, LocalSettings):
            ended = await eventually(lambda: _ended_unwatched(site, queued.spec.id), "the orphan ends by the place's own Keeper")
            assert ended == "end.orphaned"
            await nothing_is_left(site, queued.spec.id, request)
            return
        keeper = await anyio.open_process([sys.executable, "-m", "jupyter_gpu", *keeper_words(site)], stderr=None)
        async with keeper:
            try:
                ended = await eventually(lambda: _ended(site, queued.spec.id), "the orphan ends")
                assert ended.status.reason.code == "end.orphaned"
                await nothing_is_left(site, queued.spec.id, request)  # its Secret goes a moment after the end is seen
            finally:
                with suppress(ProcessLookupError):  # nothing waits any more, so it has left
                    keeper.kill()
                await keeper.wait()


async def _ended_unwatched(site: ASite, id: str) -> str | None:
    """Return the code of a Workload's end from the store alone: whoever connected would do the Keeper's work."""
    assert isinstance(site.settings, LocalSettings) and site.settings.state_folder
    look = "SELECT reason FROM workloads WHERE id = ?"
    code = f"import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute({look!r}, sys.argv[2:]))"
    process = await anyio.run_process([sys.executable, "-c", code, str(site.settings.state_folder / "store.db"), id])
    found = re.search(r'"(end\.[a-z_]+)"', process.stdout.decode())
    return found[1] if found else None


def keeper_words(site: ASite) -> tuple[str, ...]:
    """Return the words of a Keeper for a place in a cluster, where none starts by itself."""
    return ("keeper", "--name", site.place, "--settings", site.settings.model_dump_json())


async def nothing_is_left(site: ASite, id: str, request: Any) -> None:
    """Check by what the place itself shows, not by our records, that nothing of a Workload is left."""
    if isinstance(site.settings, LocalSettings):
        await eventually(lambda: not _processes_of(id), "no process is left")
        state = site.settings.state_folder
        assert state
        assert not list(state.glob(f"workloads/*{id[:8]}*/*/secrets.json"))
        assert not socket_folder(state, id, 1).exists()
        return
    admin: Admin = request.getfixturevalue("admin")

    async def is_clean() -> bool:
        pods = [pod for pod in await admin.items("pods") if id[:8] in pod["metadata"]["name"]]
        secrets = [name for name in await admin.names("secrets") if id[:8] in name]
        jobs = [job for job in await admin.items("jobs", "apis/batch/v1") if id[:8] in job["metadata"]["name"]]
        return not pods and not secrets and not any(job["status"].get("active") for job in jobs)

    await eventually(is_clean, "no pod and no Secret is left")


def _processes_of(id: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"JUPYTER_GPU_WORKLOAD={id}\0".encode() in environment:
            found.append(int(folder.name))
    return found


async def test_papermill_runs_a_notebook_on_the_device(site: ASite, tmp_path: Path) -> None:
    notebook = Path(__file__).with_name("where.ipynb")
    output = tmp_path / "out.ipynb"
    words = [sys.executable, "-m", "papermill", str(notebook), str(output), "-k", "gpu", "-p", "x", "20", "--no-progress-bar"]
    process = await anyio.run_process(words, check=False)
    assert process.returncode == 0, process.stderr.decode()[-3000:]
    import json

    texts = ["".join(o["text"]) for cell in json.loads(output.read_text())["cells"] for o in cell.get("outputs", [])]
    device, answer = "".join(texts).split()
    assert answer == "42"
    (workload,) = await workloads(site, ended=True)
    gpu = site.connect()
    reports = await asyncio.wrap_future(gpu.connection.call(lambda services: services.workloads.reports(workload.spec.id)))
    assert device in next(line.report["devices"] for line in reports if line.report and line.report["report"] == "started")


async def test_an_interrupted_wait_leaves_nothing_in_the_queue(site: ASite, request: Any) -> None:
    site.write(resources={"gpus": 2, "cpus": 0.1, "memory_bytes": "512MiB"})
    code = f"from jupyter_client.manager import start_new_kernel; start_new_kernel(kernel_name='gpu', kernel_id={str(uuid4())!r})"
    async with a_kernel():
        async with await anyio.open_process([sys.executable, "-c", code], stderr=None) as client:
            queued = await eventually(lambda: _queued(site), "the second is queued")
            client.send_signal(signal.SIGINT)
            await client.wait()
        ended = await eventually(lambda: _ended(site, queued.spec.id), "it ends")
        assert ended.status.phase is Phase.CANCELLED
        await nothing_is_left(site, queued.spec.id, request)


async def test_papermills_log_says_what_a_kernel_died_of(site: ASite, tmp_path: Path) -> None:
    site.write(grace_s=2)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os; os._exit(3)")])
    nbformat.write(notebook, tmp_path / "dies.ipynb")
    words = [sys.executable, "-m", "papermill", "dies.ipynb", "out.ipynb", "-k", "gpu", "--no-progress-bar"]
    process = await anyio.run_process(words, check=False, cwd=tmp_path)
    assert process.returncode != 0
    assert "GPU kernel gpu died: it ended with exit code 3" in process.stderr.decode()


async def test_two_launches_of_one_id_at_once_make_one_kernel(site: ASite) -> None:
    id = str(uuid4())
    code = (
        "import sys; from jupyter_client.manager import start_new_kernel\n"
        f"km, kc = start_new_kernel(kernel_name='gpu', kernel_id={id!r})\n"
        "print('up', flush=True); sys.stdin.read(); kc.stop_channels(); km.shutdown_kernel(now=True)"
    )
    both = [await anyio.open_process([sys.executable, "-c", code], stderr=None) for _ in range(2)]
    try:
        mine = await eventually(lambda: _running(site), "one kernel runs")
        assert [w.spec.id for w in mine] == [id]
        ended = await eventually(lambda: any(process.returncode is not None for process in both), "the other gives up")
        assert ended
        assert [w.spec.id for w in await workloads(site, ended=True)] == [id]
    finally:
        for process in both:
            if process.stdin:
                await process.stdin.aclose()
            await process.wait()
            await process.aclose()


async def _running(site: ASite) -> list[Workload]:
    return [w for w in await workloads(site) if w.status.phase is Phase.RUNNING]
