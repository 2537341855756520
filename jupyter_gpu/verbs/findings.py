"""What works here and what is off: one examination per subject, none of which starts anything."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from jupyter_core.paths import jupyter_config_path

import jupyter_gpu
from jupyter_gpu.config import CONFIG_NAME, Site
from jupyter_gpu.connection import Gpu, connect
from jupyter_gpu.errors import JupyterGpuError
from jupyter_gpu.schema import LocalSettings, MiB, Place, Profile, format_bytes
from jupyter_gpu.services.kernel_requests import kernel_request
from jupyter_gpu.verbs.kernelspecs import PROVISIONER, found_kernelspecs
from jupyter_gpu.verbs.status import missing_text
from jupyter_gpu.verbs.words import counts

_ENCRYPTS_SINCE = (7, 3)
_LITTLE_SPACE = 1 << 30


class State(StrEnum):
    """How a thing stands."""

    OK = "ok"
    NOTE = "note"
    OFF = "off"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    state: State
    message: str


def of_python() -> Iterator[Finding]:
    """Yield what this program is, and whether Jupyter finds it."""
    yield Finding("python", State.OK, f"{platform.python_version()} in {sys.prefix}, jupyter-gpu {jupyter_gpu.__version__}")
    if any(point.name == PROVISIONER for point in metadata.entry_points(group="jupyter_client.kernel_provisioners")):
        yield Finding("provisioner", State.OK, "Jupyter finds it in this Python")
    else:
        yield Finding("provisioner", State.OFF, "Jupyter does not find it in this Python: install the package jupyter-gpu here")
    version = metadata.version("ipykernel")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) >= _ENCRYPTS_SINCE:
        yield Finding("ipykernel", State.OK, version)
    else:
        words = f"{version} can't encrypt what it sends, so it may only be reached by port-forward in a pod; 7.3 or newer can"
        yield Finding("ipykernel", State.NOTE, words)


def of_files() -> Iterator[Finding]:
    """Yield which configuration files there are."""
    files = [
        path
        for folder in jupyter_config_path()
        for suffix in (".json", ".py")
        if (path := Path(folder) / (CONFIG_NAME + suffix)).is_file()
    ]
    shown = (
        ", ".join(map(str, files))
        or f"no file: defaults ({CONFIG_NAME}.py or .json on Jupyter's configuration path would be read)"
    )
    yield Finding("configuration", State.OK, shown)


def of_driver() -> Iterator[Finding]:
    """Yield what NVIDIA's driver says."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version, count = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetCount()
    except ImportError as error:
        yield Finding("driver", State.NOTE, f"nvidia-ml-py is not installed ({error}), so NVIDIA GPUs can't be found")
    except pynvml.NVMLError as error:
        yield Finding("driver", State.NOTE, f"no NVIDIA GPU can be used on this machine: {error}")
    else:
        yield Finding("driver", State.OK, f"NVIDIA {version}, {count} GPUs")


def of_kernelspecs(site: Site) -> Iterator[Finding]:
    """Yield whether the kernelspecs of ours can start."""
    found = found_kernelspecs(site)
    if not found:
        yield Finding("kernelspecs", State.NOTE, "none of ours is installed; `jupyter gpu kernels install` writes them")
    for one in found:
        state, words = (State.OFF, one.problem) if one.problem else (State.OK, f"profile {one.profile!r}, {one.folder}")
        yield Finding(f"kernelspec {one.name}", state, words)


def of_place(name: str, site: Site) -> Iterator[Finding]:
    """Yield whether a place can be reached, what it has, what this account may not do there, and what its profiles would get."""
    subject = f"place {name}"
    try:
        gpu = connect(name, site=site)
        place = gpu.place()
    except JupyterGpuError as error:
        yield Finding(subject, State.OFF, str(error))
        return
    free = "" if place.free is None else f", {sum(place.free.values())} free"
    yield Finding(subject, State.OK, f"{place.backend}, as {place.identity}, at {place.address}: {counts(place.capacity)}{free}")
    for note in place.notes:
        yield Finding(subject, State.NOTE, note)
    for missing in place.missing:
        yield Finding(subject, State.NOTE, missing_text(missing))
    settings = gpu.connection.settings
    if isinstance(settings, LocalSettings):
        yield from _of_folders(subject, place)
        yield _of_memory(subject, settings)
    for profile_name, profile in site.profiles.items():
        if profile.place == name:
            yield _of_profile(profile_name, profile, gpu)


def of_lost_profiles(site: Site) -> Iterator[Finding]:
    """Yield the profiles whose place is not configured."""
    for name, profile in site.profiles.items():
        if profile.place not in site.places:
            words = f"its place {profile.place!r} is not configured; there are: {', '.join(site.places)}"
            yield Finding(f"profile {name}", State.OFF, words)


def _of_folders(subject: str, place: Place) -> Iterator[Finding]:
    from jupyter_gpu.backends.local.sockets import socket_folder  # which folder it is, only that backend knows

    state = Path(place.address)
    free = shutil.disk_usage(state).free
    kind = f", {kind}" if (kind := _file_system(state)) else ""
    little = free < _LITTLE_SPACE
    words = f"state folder {state}: {format_bytes(free)} free{kind}" + (", which is little for logs" if little else "")
    yield Finding(subject, State.NOTE if little else State.OK, words)
    try:
        yield Finding(subject, State.OK, f"sockets of kernels in {socket_folder(state, 'check', 1).parent}")
    except JupyterGpuError as error:
        yield Finding(subject, State.OFF, str(error))


def _of_memory(subject: str, settings: LocalSettings) -> Finding:
    """Tell which way memory is limited, and why not a better one; a scope is tried, for only that shows whether it can be had."""
    from jupyter_gpu.replica import limits  # what a runner goes by

    way, why = limits.way(settings.memory_limits)
    if way == limits.WATCH:
        return Finding(subject, State.OK, f"the memory of programs is watched, and who goes above their limit is ended: {why}")
    if way == limits.OFF:
        if settings.memory_limits == limits.SCOPE:
            return Finding(subject, State.OFF, f"no program can start, for memory_limits is 'scope', and there is none: {why}")
        return Finding(subject, State.NOTE, f"the memory of programs is not limited: {why}")
    command, variables = limits.scope_command(["true"], dict(os.environ), MiB * 64)
    tried = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if tried.returncode:
        return Finding(
            subject, State.OFF, f"systemd-run refuses to limit memory ({tried.stderr.strip()}): set memory_limits to 'watch'"
        )
    return Finding(subject, State.OK, "the memory of programs is limited by a systemd scope")


def _of_profile(name: str, profile: Profile, gpu: Gpu) -> Finding:
    """Ask the place whether it would take a kernel of a profile; nothing is written for that."""
    local = isinstance(gpu.connection.settings, LocalSettings)
    python = profile.environment.interpreter or (sys.executable if local else "python3")
    command = profile.argv or (python, "-m", "ipykernel_launcher", "-f", "{connection_file}")
    spec = kernel_request(name, profile, id="jupyter-gpu-check", name="check", command=command, secrets=("key",))
    try:
        gpu.connection.call(lambda services: services.backend.submit(spec, secrets={"key": "none"}, dry_run=True)).result()
    except JupyterGpuError as error:
        return Finding(f"profile {name}", State.OFF, f"{gpu.connection.name} would refuse its kernels: {error}")
    return Finding(f"profile {name}", State.OK, f"{gpu.connection.name} would take its kernels")


def _file_system(path: Path) -> str:
    if sys.platform != "linux":
        return ""
    found = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=False)
    return found.stdout.strip()
