"""A store that is lost, damaged or wrong: what is said of it, and what becomes of those that it knew of."""

from __future__ import annotations

import os
import signal
from contextlib import aclosing, closing

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.local import LocalBackend
from jupyter_gpu.backends.local.state import StateFolder
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.errors import BackendError
from jupyter_gpu.schema import LocalSettings, LogLine, Phase, Stream
from tests.builders import DEADLINE_S, a_kernel, a_workload, end_all, finished, running, shown
from tests.unit.local.conftest import content_of, is_alive, python

SURVIVOR = """
import os, time
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
time.sleep(600)
"""
KEYS = {"key": "of a lost store", "curve_secretkey": "another one"}


async def test_what_a_lost_store_knew_of_has_ended_before_its_device_is_given_again(
    local_settings: LocalSettings, state: StateFolder
) -> None:
    async with LocalBackend("local", local_settings) as backend:
        await backend.submit(a_workload("w-1", gpus=2))
        await running(backend, "w-1")
    lost = state.attempt("w-1", 1)
    pids = (content_of(lost.state)["pid"], content_of(lost.state)["program"]["pid"])
    state.store.unlink()
    Store(state.store).close()  # whoever made the new one died before its first step
    async with LocalBackend("local", local_settings) as backend:
        await backend.submit(a_workload("w-2", gpus=2))
        assert not any(map(is_alive, pids))
        await running(backend, "w-2")
        assert set(await shown(backend)) == {"w-2"}
        await end_all(backend)
    assert not lost.path.exists()


async def test_the_sockets_of_what_a_lost_store_knew_of_go_with_its_folder(
    local_settings: LocalSettings, state: StateFolder
) -> None:
    async with LocalBackend("local", local_settings) as backend:
        await backend.submit(a_kernel("k-1"), secrets=KEYS)
        await running(backend, "k-1")
    sockets = content_of(state.attempt("k-1", 1).replica)["run_folder"]
    state.store.unlink()
    async with LocalBackend("local", local_settings) as backend:
        await backend.describe()
    assert not StateFolder(state.path / sockets).path.exists()


async def test_what_a_store_knows_to_run_is_no_stray(local_settings: LocalSettings, state: StateFolder) -> None:
    async with LocalBackend("local", local_settings) as backend:
        await backend.submit(a_workload("w-1", gpus=2))
        await running(backend, "w-1")
    with closing(Store(state.store)) as store, store.transaction() as connection:
        connection.execute("DELETE FROM settings WHERE name = 'strays'")
    async with LocalBackend("local", local_settings) as backend:
        await backend.describe()
        await running(backend, "w-1")
        await end_all(backend)


async def test_a_store_whose_schema_became_noise_is_named_with_what_to_do(
    local_settings: LocalSettings, state: StateFolder
) -> None:
    async with LocalBackend("local", local_settings) as backend:
        await backend.describe()
    content = state.store.read_bytes()
    assert b"start_timeout_s REAL" in content
    state.store.write_bytes(content.replace(b"start_timeout_s REAL", b"start_\xfd\xfe\xff,,,\xfd REAL"))
    async with LocalBackend("local", local_settings) as backend:
        with pytest.raises(BackendError, match=r"store\.db is damaged .*move it away"):
            await backend.submit(a_workload("w-1"))


async def test_nothing_outlives_a_runner_of_which_the_store_believes_that_it_ran_before_a_restart(
    local_settings: LocalSettings, state: StateFolder
) -> None:
    async with LocalBackend("local", local_settings) as backend:
        await backend.submit(a_workload("w-1", gpus=2, command=python(SURVIVOR)))
        survivor = int((await said_first(backend, "w-1")).text)
    with closing(Store(state.store)) as store, store.transaction() as connection:
        connection.execute("UPDATE workloads SET boot_id = 'another'")
    os.kill(content_of(state.attempt("w-1", 1).state)["pid"], signal.SIGKILL)
    async with LocalBackend("local", local_settings) as backend:
        assert (await finished(backend, "w-1")).phase is Phase.FAILED
        assert not is_alive(survivor)


async def said_first(backend: Backend, id: str) -> LogLine:
    with anyio.fail_after(DEADLINE_S):
        async with aclosing(backend.logs(id, follow=True)) as lines:  # type: ignore[type-var]
            async for line in lines:
                if line.stream is Stream.STDOUT:
                    return line
    raise AssertionError("it said nothing")
