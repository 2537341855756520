"""Bad input, as one table: each is refused before a device is taken, by a message that names the thing and the way out.

The rows run the real thing: a kernel launched by jupyter_client through its kernelspec, and the command line as a process.
Those that need a cluster stand in `tests/cluster/`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import AsyncKernelManager

from jupyter_gpu.connection import open_connection
from jupyter_gpu.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    JupyterGpuError,
    NotFoundError,
    QuotaExceededError,
)
from tests.builders import end_all
from tests.homes import Home

_FOREIGN_UID = 54321
_LONG = "n" * 300
_SPEC = "gpu-test"
_KERNEL = ("python3", "-m", "ipykernel_launcher", "-f", "{connection_file}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Home]:
    """Jupyter's folders for this test alone; what runs there ends with the test."""
    made = Home(tmp_path, capsys)
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    yield made
    if (made.state / "store.db").exists():
        made.configure()
        connection = open_connection()
        connection.call(lambda services: end_all(services.backend)).result()
        connection.close()


# ---- what a kernel asks for


@dataclass(frozen=True)
class Asked:
    """One bad wish of a kernel, and what it is answered."""

    label: str
    error: type[JupyterGpuError]
    says: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    """Of the kernelspec."""
    argv: tuple[str, ...] = _KERNEL
    profile: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the place."""


_BOUNDS = {"bounds": {"max_gpus": 8, "max_memory_bytes": "64GiB"}}
_ASKED = (
    Asked("an unknown profile", NotFoundError, ("no profile 'tpu'", "there are: gpu"), {"profile": "tpu"}),
    Asked(
        "no accelerator's name", InvalidRequestError, ("'gpu' is no accelerator", "like nvidia.com/gpu"), {"accelerator": "gpu"}
    ),
    Asked(
        "an accelerator that is not there",
        QuotaExceededError,
        ("1 acme.com/npu", "it has none", "2 nvidia.com/gpu"),
        {"accelerator": "acme.com/npu"},
    ),
    Asked("0 GPUs", InvalidRequestError, ("config.gpus", "must be at least 1", "given: 0"), {"gpus": 0}),
    Asked("-1 GPUs", InvalidRequestError, ("config.gpus", "must be at least 1", "given: -1"), {"gpus": -1}),
    Asked("1.5 GPUs", InvalidRequestError, ("config.gpus", "whole number", "given: 1.5"), {"gpus": 1.5}),
    Asked("two GPUs in words", InvalidRequestError, ("config.gpus", "whole number", "given: 'two'"), {"gpus": "two"}),
    Asked(
        "more GPUs than the profile allows", InvalidRequestError, ("gpus: 2 is more than profile 'gpu' allows (1)",), {"gpus": 2}
    ),
    Asked(
        "more GPUs than the place has",
        QuotaExceededError,
        ("local", "3 nvidia.com/gpu", "it has 2"),
        {"gpus": 3},
        profile=_BOUNDS,
    ),
    Asked(
        "a GPU where there is none", QuotaExceededError, ("local", "1 nvidia.com/gpu", "it has none"), local={"emulated_gpus": 0}
    ),
    Asked("memory of 4XB", InvalidRequestError, ("memory", "'4XB' is no size in bytes", "4GiB"), {"memory": "4XB"}),
    Asked("memory of 0", InvalidRequestError, ("memory", "must be more than 0"), {"memory": "0"}),
    Asked(
        "too much memory", InvalidRequestError, ("memory: 8 GiB is more than profile 'gpu' allows (4 GiB)",), {"memory": "8GiB"}
    ),
    Asked("a profile with a name of 300 characters", NotFoundError, (f"no profile '{_LONG}'",), {"profile": _LONG}),
    Asked("a profile with a name of emoji", NotFoundError, ("no profile '\N{PILE OF POO}'",), {"profile": "\N{PILE OF POO}"}),
    Asked("a profile with the name ../..", NotFoundError, ("no profile '../..'",), {"profile": "../.."}),
    Asked(
        "an interpreter that is gone",
        InvalidRequestError,
        ("/gone/env/bin/python, which does not exist", f"jupyter kernelspec remove {_SPEC}"),
        argv=("/gone/env/bin/python", *_KERNEL[1:]),
    ),
    Asked("no command at all", InvalidRequestError, (f"'{_SPEC}'", "argv is []"), argv=()),
    Asked("a command that is none", InvalidRequestError, (f"'{_SPEC}'", "no command"), argv=(5, "{connection_file}")),
    Asked(
        "a program that is not installed",
        InvalidRequestError,
        ("'no-such-kernel'", "install it, or give its full path"),
        argv=("no-such-kernel", "{connection_file}"),
    ),
)


def _install(home: Home, asked: Asked) -> None:
    home.configure(places={"local": {**home.local, **asked.local}}, profiles={"gpu": {"resources": {"gpus": 1}, **asked.profile}})
    provisioner = {"provisioner_name": "jupyter-gpu", "config": {"profile": "gpu", **asked.config}}
    home.install_kernelspec(
        _SPEC,
        {
            "argv": list(asked.argv),
            "display_name": "test",
            "language": "python",
            "interrupt_mode": "message",
            "metadata": {"kernel_provisioner": provisioner, "supported_encryption": ["curve"]},
        },
    )


@pytest.mark.parametrize("asked", _ASKED, ids=lambda asked: asked.label)
async def test_a_kernel_that_can_never_run_is_refused_with_a_way_out(home: Home, asked: Asked) -> None:
    _install(home, asked)
    with pytest.raises(asked.error) as caught:
        await AsyncKernelManager(kernel_name=_SPEC).start_kernel()
    message = str(caught.value)
    for words in asked.says:
        assert words in message
    assert "\n" not in message
    if (home.state / "store.db").exists():
        assert home.cli("list", "--all", "--json").data["workloads"] == []


# ---- names, which are not refused


@pytest.mark.parametrize(
    "name", [_LONG, "\N{PILE OF POO}" * 20, "../..", "a b\tc"], ids=["300 characters", "emoji", "../..", "blanks"]
)
async def test_a_strange_name_is_shown_and_harms_nothing(home: Home, name: str) -> None:
    _install(home, Asked("", JupyterGpuError, ()))
    manager = AsyncKernelManager(kernel_name=_SPEC)
    await manager.start_kernel(env={**os.environ, "JPY_SESSION_NAME": f"/x/{name}" if name != "../.." else name})
    try:
        (shown,) = home.cli("list", "--json").data["workloads"]
        assert shown["spec"]["name"] == (name if name != "../.." else "..")
        assert home.cli("list").exit_code == home.cli("show", shown["spec"]["id"]).exit_code == 0
        folders = [path.name for path in (home.state / "workloads").iterdir()]
        assert len(folders) == 1 and len(folders[0]) <= 40
    finally:
        await manager.shutdown_kernel(now=True)


# ---- what a site sets


@dataclass(frozen=True)
class Site:
    """One broken configuration, and what it is answered."""

    label: str
    suffix: str
    text: str
    says: tuple[str, ...]


_SITES = (
    Site("JSON that ends early", ".json", '{"JupyterGpu": {', ("JSONDecodeError",)),
    Site("Python that does not parse", ".py", "c.JupyterGpu.places = (", ("SyntaxError", "never closed")),
    Site("Python that raises", ".py", 'raise OSError("no such share")', ("OSError: no such share",)),
    Site("an unknown setting", ".py", "c.JupyterGpu.plces = {}", ("no setting 'plces'", "default_place, places, profiles")),
    Site("a wrong type", ".py", "c.JupyterGpu.profiles = 3", ("JupyterGpu.profiles", "mapping of names", "given: 3")),
    Site(
        "an unknown backend", ".py", 'c.JupyterGpu.places = {"a": {"backend": "slurm"}}', ("places.a", "'slurm'", "'kubernetes'")
    ),
    Site("a wrong size", ".py", 'c.JupyterGpu.profiles = {"gpu": {"resources": {"memory_bytes": "4XB"}}}', ("'4XB'", "4GiB")),
    Site("no place", ".json", '{"JupyterGpu": {"places": {}}}', ("JupyterGpu.places", "must not be empty")),
)


@pytest.mark.parametrize("site", _SITES, ids=lambda site: site.label)
async def test_a_broken_configuration_is_named_by_every_way_in(home: Home, site: Site) -> None:
    _install(home, Asked("", JupyterGpuError, ()))
    (home.folder / "config" / "jupyter_gpu_config.json").unlink()
    path = home.write_config(site.text, site.suffix)
    result = home.command("list")
    assert result.exit_code == 2 and result.err.startswith(f"Error: {path}") and len(result.err.splitlines()) == 1
    with pytest.raises(InvalidRequestError) as caught:
        await AsyncKernelManager(kernel_name=_SPEC).start_kernel()
    for words in (str(path), *site.says):
        assert words in str(caught.value) and words in result.err


# ---- places that can't be used


def _foreign_folder(home: Home) -> dict[str, Any]:
    folder = home.folder / "theirs"
    folder.mkdir(mode=0o700)
    if os.getuid() == 0:
        os.chown(folder, _FOREIGN_UID, _FOREIGN_UID)
    else:
        folder = Path("/")  # root's, and nobody else may write there
    return {**home.local, "state_folder": str(folder)}


def _unreachable_cluster(home: Home) -> dict[str, Any]:
    kubeconfig = home.folder / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": "default"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "none"}}],
        "contexts": [{"name": "k", "context": context}],
        "current-context": "k",
    }
    kubeconfig.write_text(json.dumps(config))
    return {"backend": "kubernetes", "kubeconfig": str(kubeconfig), "request_timeout_s": 5}


def _no_kubeconfig(home: Home) -> dict[str, Any]:
    return {"backend": "kubernetes", "kubeconfig": str(home.folder / "nowhere")}


def _unknown_context(home: Home) -> dict[str, Any]:
    return {**_unreachable_cluster(home), "context": "moon"}


_PLACES = (
    (_foreign_folder, InvalidRequestError, 2, ("state folder", "set state_folder to a folder of yours")),
    (_unreachable_cluster, BackendUnavailableError, 6, ("127.0.0.1:1",)),
    (_no_kubeconfig, InvalidRequestError, 2, ("nowhere",)),
    (_unknown_context, InvalidRequestError, 2, ("moon", "kubeconfig")),
)


@pytest.mark.parametrize(("place", "error", "exit_code", "says"), _PLACES, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_place_that_cant_be_used_says_why(
    home: Home, place: Any, error: type[JupyterGpuError], exit_code: int, says: tuple[str, ...]
) -> None:
    _install(home, Asked("", JupyterGpuError, ()))
    profile = {"resources": {"gpus": 1}, "place": "broken", "environment": {"image": "x:1"}}
    if place is _foreign_folder:
        del profile["environment"]
    home.configure(places={"broken": place(home)}, profiles={"gpu": profile})
    for words in ("status", "list"):
        result = home.command(words)
        assert result.exit_code == exit_code, result.err
        assert "Traceback" not in result.err and result.err.splitlines()[-1].startswith("Error: ")
        for part in says:
            assert part in result.err
    assert home.cli("check").exit_code == 1
    with pytest.raises(error) as caught:
        await AsyncKernelManager(kernel_name=_SPEC).start_kernel()
    for part in says:
        assert part in str(caught.value)
