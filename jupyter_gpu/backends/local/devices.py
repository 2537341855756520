"""The devices of this machine: NVIDIA's by NVML, or emulated ones to try things out.

`pynvml` (of nvidia-ml-py) is loaded on first use; a machine without the driver's library simply has no devices.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_gpu.schema import NVIDIA_GPU, Accelerator, Device, LocalSettings

_MIG_PROFILE = re.compile(r"MIG (\d+g\.\d+gb\S*)", re.IGNORECASE)


@dataclass(frozen=True)
class Devices:
    """What was found."""

    devices: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know, like why there is none."""

    @property
    def capacity(self) -> dict[str, int]:
        """Devices in all, by resource name."""
        return dict(Counter(device.accelerator.resource for device in self.devices))

    def free(self, held: Collection[str]) -> dict[str, list[str]]:
        """Return the ids of those that nobody holds and nobody else computes on, by resource name."""
        found: dict[str, list[str]] = {resource: [] for resource in self.capacity}
        for device in self.devices:
            if device.id not in held and device.foreign is None:
                found[device.accelerator.resource].append(device.id)
        return found


def find_devices(settings: LocalSettings, is_ours: Callable[[int], bool]) -> Devices:
    """Return the devices of this machine, and who else computes on them.

    Args:
        settings: of the place; ``emulated_gpus`` replaces what is there.
        is_ours: whether a process, by its pid, belongs to one of our Workloads.
    """
    if settings.emulated_gpus is None:
        return _nvidia_devices(is_ours)
    return _emulated_devices(settings.emulated_gpus)


@functools.cache
def _emulated_devices(count: int) -> Devices:
    ids = (f"GPU-emulated-{number}" for number in range(count))
    devices = tuple(Device(id=id, accelerator=NVIDIA_GPU, model="emulated", emulated=True) for id in ids)
    words = "the GPU is emulated: it does not exist" if count == 1 else f"the {count} GPUs are emulated: they do not exist"
    return Devices(devices, (f"{words}, and no program finds one",))


def _nvidia_devices(is_ours: Callable[[int], bool]) -> Devices:
    try:
        import pynvml
    except ImportError as error:
        return Devices(notes=(f"nvidia-ml-py is not installed ({error}), so GPUs can't be found",))
    try:
        _open(pynvml)
    except pynvml.NVMLError as error:
        return Devices(notes=(f"no NVIDIA GPU can be used here: {error}",))
    devices: list[Device] = []
    notes: list[str] = []
    try:
        for number in range(pynvml.nvmlDeviceGetCount()):
            try:
                devices += _parts(pynvml, pynvml.nvmlDeviceGetHandleByIndex(number), is_ours)
            except pynvml.NVMLError as error:  # one that fell off the bus must not hide the others
                notes.append(f"GPU {number} can't be used: {error}")
    except pynvml.NVMLError as error:
        notes.append(f"GPUs can't be counted: {error}")
    return Devices(tuple(devices), tuple(notes))


@functools.cache
def _open(nvml: Any) -> None:
    """Open NVML for good: closing it may make the driver reset idle GPUs, and opening it then takes seconds."""
    nvml.nvmlInit()


def _parts(nvml: Any, handle: Any, is_ours: Callable[[int], bool]) -> Iterator[Device]:
    """Yield a GPU, or its MIG slices where it is split into some."""
    if not _is_split(nvml, handle):
        yield _device(nvml, handle, NVIDIA_GPU, is_ours)
        return
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slice = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError_NotFound:
            continue
        match = _MIG_PROFILE.search(nvml.nvmlDeviceGetName(slice))
        if match:
            resource = "nvidia.com/mig-" + match[1].lower().replace("+", ".")
            yield _device(nvml, slice, Accelerator.model_validate(resource), is_ours)


def _is_split(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False


def _device(nvml: Any, handle: Any, accelerator: Accelerator, is_ours: Callable[[int], bool]) -> Device:
    return Device(
        id=nvml.nvmlDeviceGetUUID(handle),
        accelerator=accelerator,
        model=nvml.nvmlDeviceGetName(handle),
        memory_bytes=_memory_bytes(nvml, handle),
        foreign=_foreign(nvml, handle, is_ours),
    )


def _memory_bytes(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):  # GPUs that share the machine's memory
        return 0


def _foreign(nvml: Any, handle: Any, is_ours: Callable[[int], bool]) -> str | None:
    others = [_who(pid) for pid in _computing(nvml, handle) if not is_ours(pid)]
    return ", ".join(others) or None


def _computing(nvml: Any, handle: Any) -> list[int]:
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetComputeRunningProcesses_v2):  # drivers before 510
        try:
            return [process.pid for process in ask(handle)]
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            continue
    return []


def _who(pid: int) -> str:
    folder = Path(f"/proc/{pid}")
    try:
        uid, command = folder.stat().st_uid, (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return f"pid {pid}"  # of another container, or just gone
    return f"{account(uid)} ({command}, pid {pid})"


def account(uid: int | None = None) -> str:
    """Return the name of an account, of this process' own when none is given."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
