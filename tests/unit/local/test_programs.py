"""What programs get of this process, and what can't run is refused with its cause."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from jupyter_gpu.backends.base import Backend, TcpAddress, UnixAddress
from jupyter_gpu.backends.local.state import StateFolder
from jupyter_gpu.errors import InvalidRequestError, NotFoundError, UnsupportedError
from jupyter_gpu.schema import Environment, Port
from tests.builders import ENVIRONMENT, KEYS, a_kernel, a_workload, finished, log_of, program, running, texts
from tests.unit.local.conftest import content_of


def environment(**changes: object) -> Environment:
    return ENVIRONMENT.model_copy(update=changes)


async def test_only_listed_variables_pass(local_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "swordfish")
    monkeypatch.setenv("LC_TEST", "passes")
    tells = ("JUPYTERHUB_API_TOKEN", "LC_TEST", "MINE", "LANG", "JUPYTER_GPU_WORKLOAD", "JUPYTER_GPU_ATTEMPT")
    variables = {**ENVIRONMENT.variables, "MINE": "1", "LANG": "xx"}
    spec = a_workload("w-1", command=program((), tells=tells), environment=environment(variables=variables))
    await local_backend.submit(spec)
    await finished(local_backend, "w-1")
    assert texts(await log_of(local_backend, "w-1")) == [
        "JUPYTERHUB_API_TOKEN=",
        "LC_TEST=passes",
        "MINE=1",
        "LANG=xx",
        "JUPYTER_GPU_WORKLOAD=w-1",
        "JUPYTER_GPU_ATTEMPT=1",
    ]


async def test_without_devices_none_is_visible(local_backend: Backend) -> None:
    await local_backend.submit(a_workload("w-1", command=program((), tells=("CUDA_VISIBLE_DEVICES",))))
    await finished(local_backend, "w-1")
    assert texts(await log_of(local_backend, "w-1")) == ["CUDA_VISIBLE_DEVICES="]


async def test_a_program_starts_at_home(local_backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    where = (sys.executable, "-c", "import os; print(os.getcwd())")
    await local_backend.submit(a_workload("w-1", command=where))
    await local_backend.submit(a_workload("w-2", command=where, environment=environment(working_directory="~/new/folder")))
    for id, folder in (("w-1", tmp_path), ("w-2", tmp_path / "new" / "folder")):
        await finished(local_backend, id)
        assert texts(await log_of(local_backend, id)) == [str(folder)]


@pytest.mark.parametrize("command", ["/no/such/program", "no-such-program", "./no-such-program"])
async def test_a_command_that_is_not_there_is_refused(local_backend: Backend, command: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"command '{command}'.*install it"):
        await local_backend.submit(a_workload("w-1", command=(command,)))


async def test_a_command_is_looked_for_where_the_program_will(local_backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("#!/bin/sh\necho ours\n")
    (tmp_path / "mine").chmod(0o700)
    variables = {**ENVIRONMENT.variables, "PATH": str(tmp_path)}
    await local_backend.submit(a_workload("w-1", command=("mine",), environment=environment(variables=variables)))
    await local_backend.submit(a_workload("w-2", command=("./mine",), environment=environment(working_directory=str(tmp_path))))
    for id in ("w-1", "w-2"):
        await finished(local_backend, id)
        assert texts(await log_of(local_backend, id)) == ["ours"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment": environment(interpreter="/no/such/python")}, "interpreter '/no/such/python'"),
        ({"environment": environment(image="pytorch:2")}, "runs no containers"),
        ({"secrets": ("token",)}, "token"),
    ],
    ids=["interpreter", "image", "secret"],
)
async def test_what_can_not_run_is_refused(local_backend: Backend, changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        await local_backend.submit(a_workload(**{"id": "w-1", **changes}))


async def test_more_than_one_replica_is_not_there_yet(local_backend: Backend) -> None:
    with pytest.raises(UnsupportedError, match="comes with training"):
        await local_backend.submit(a_workload("w-1", replicas=2))


async def test_a_kernels_ports_are_short_paths_and_others_are_numbers(local_backend: Backend, state: StateFolder) -> None:
    await local_backend.submit(a_kernel("k-1"), secrets=KEYS)
    await running(local_backend, "k-1")
    async with local_backend.open_port("k-1", port="shell") as address:
        assert isinstance(address, UnixAddress)
        assert address.path.name == "k-54321"
        assert len(str(address.path)) <= 90 or len(str(state.path)) > 60
    ports = (Port(name="http", number=8000), Port(name="other", number=8000))
    await local_backend.submit(a_workload("w-1", ports=ports))
    await running(local_backend, "w-1")
    async with local_backend.open_port("w-1", port="http") as one, local_backend.open_port("w-1", port="other") as two:
        assert isinstance(one, TcpAddress)
        assert isinstance(two, TcpAddress)
        assert one.host == "127.0.0.1"
        assert one.port != two.port
    with pytest.raises(NotFoundError, match="it has http, other"):
        async with local_backend.open_port("w-1", port="https"):
            pass


async def test_secrets_are_in_one_private_file_and_nowhere_else(local_backend: Backend, state: StateFolder) -> None:
    await local_backend.submit(a_workload("w-1", secrets=("token",)), secrets={"token": "swordfish"})
    await running(local_backend, "w-1")
    found = await anyio.run_process(["grep", "-rl", "swordfish", str(state.path)])  # see `Store`: never open its file here
    holders = [Path(line) for line in found.stdout.decode().splitlines()]
    assert holders == [state.attempt("w-1", 1).secrets]
    assert holders[0].stat().st_mode & 0o777 == 0o600
    assert content_of(state.attempt("w-1", 1).replica)["secrets"] == str(holders[0])
