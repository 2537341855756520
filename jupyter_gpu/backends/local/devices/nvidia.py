"""NVIDIA's devices by NVML.

What a GPU is and how it is split is kept for some seconds; who computes on it is asked each time. `pynvml` (of nvidia-ml-py) is
loaded on first use; a machine without the driver's library simply has no devices. Only processes that compute count as strangers:
a desktop draws on a GPU, and that keeps nobody from training on it.

Source: NVML API reference, "Device Queries" and "Multi Instance GPU Management".
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jupyter_gpu.backends.local.devices.found import Devices
from jupyter_gpu.backends.local.devices.strangers import strangers
from jupyter_gpu.schema import NVIDIA_GPU, Accelerator, Device

_KEEP_S = 5.0
_MIG_PROFILE = re.compile(r"\bMIG ((?:\d+c\.)?\d+g\.\d+gb\S*)", re.IGNORECASE)


@dataclass(frozen=True)
class _Part:
    """A GPU or a slice of one, and by what NVML knows it."""

    handle: Any
    device: Device


@dataclass(frozen=True)
class _Layout:
    """What changes rarely: which GPUs there are, and how they are split."""

    parts: tuple[_Part, ...] = ()
    notes: tuple[str, ...] = ()


class NvidiaDevices:
    """The NVIDIA devices of this machine; its methods may be called by any thread."""

    def __init__(self, keep_s: float = _KEEP_S) -> None:
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._is_open = False
        self._layout: _Layout | None = None
        self._layout_at = 0.0

    def look(self, is_ours: Callable[[int], bool]) -> Devices:
        """Return the devices, and who else computes on them.

        Args:
            is_ours: whether a process, by its pid, belongs to one of our Workloads.
        """
        try:
            import pynvml
        except ImportError as error:
            return Devices(notes=(f"nvidia-ml-py is not installed ({error}), so GPUs can't be found",))
        with self._lock:
            layout, is_fresh = self._known(pynvml)
            found = _look(pynvml, layout, is_ours)
            if len(found.devices) < len(layout.parts) and not is_fresh:  # one went away, or was split anew
                self._layout = None
                found = _look(pynvml, self._known(pynvml)[0], is_ours)
        return found

    def _known(self, nvml: Any) -> tuple[_Layout, bool]:
        """Return the layout, and whether it was read just now."""
        now = time.monotonic()
        if self._layout is not None and now < self._layout_at + self._keep_s:
            return self._layout, False
        self._layout, self._layout_at = self._read(nvml), now
        return self._layout, True

    def _read(self, nvml: Any) -> _Layout:
        try:
            if not self._is_open:  # for good: closing it may make the driver reset idle GPUs, and opening it then takes seconds
                nvml.nvmlInit()
                self._is_open = True
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            return _Layout(notes=(f"no NVIDIA GPU can be used here: {error}",))
        parts: list[_Part] = []
        notes: list[str] = []
        for number in range(count):
            try:
                parts += _parts(nvml, number, notes)
            except nvml.NVMLError as error:  # one that fell off the bus must not hide the others
                notes.append(f"GPU {number} can't be used: {error}")
        return _Layout(tuple(parts), tuple(notes))


def _look(nvml: Any, layout: _Layout, is_ours: Callable[[int], bool]) -> Devices:
    devices: list[Device] = []
    notes = list(layout.notes)
    unseen: set[str] = set()
    for part in layout.parts:
        try:
            foreign, is_unseen = strangers(_computing(nvml, part.handle), is_ours)
        except _not_told(nvml) as error:
            foreign, is_unseen = None, False
            notes.append(f"who computes on {part.device.id} can't be told: {error}")
        except nvml.NVMLError as error:
            notes.append(f"{part.device.id} can't be used: {error}")
            continue
        devices.append(part.device.model_copy(update={"foreign": foreign}) if foreign else part.device)
        if is_unseen:
            unseen.add(part.device.id)
    return Devices(tuple(devices), tuple(notes), frozenset(unseen))


def _parts(nvml: Any, number: int, notes: list[str]) -> Iterator[_Part]:
    """Yield a GPU, or its slices when it is in MIG mode; a note says why there is none."""
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    mode = _asked(nvml, nvml.nvmlDeviceGetComputeMode, handle)
    if mode == nvml.NVML_COMPUTEMODE_PROHIBITED:
        notes.append(f"GPU {number} is left out: its compute mode is prohibited")
        return
    if mode in (nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD):
        notes.append(f"GPU {number} takes one process at a time: its compute mode is exclusive")
    mig = _asked(nvml, nvml.nvmlDeviceGetMigMode, handle)
    gpu = _device(nvml, handle, NVIDIA_GPU)
    if mig is None or mig[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        yield _Part(handle, gpu)
        return
    slices = list(_slices(nvml, handle, number, gpu, notes))
    yield from slices
    if not slices:
        notes.append(
            f"GPU {number} is in MIG mode and has no slice, so nothing can run on it: make some with nvidia-smi mig -cgi"
        )


def _slices(nvml: Any, handle: Any, number: int, gpu: Device, notes: list[str]) -> Iterator[_Part]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slice = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        name = nvml.nvmlDeviceGetName(slice)
        if profile := _MIG_PROFILE.search(name):
            # as the device plugin names it: 1g.10gb+me becomes mig-1g.10gb.me
            kind = Accelerator.model_validate("nvidia.com/mig-" + profile[1].lower().replace("+", "."))
            made = _device(nvml, slice, kind)
            yield _Part(slice, made.model_copy(update={"model": gpu.model, "parent": gpu.id}))
        else:
            notes.append(f"a slice of GPU {number} is left out: its name, {name!r}, tells no MIG profile")


def _device(nvml: Any, handle: Any, accelerator: Accelerator) -> Device:
    memory = _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)  # GPUs that share the machine's memory tell none
    return Device(
        id=nvml.nvmlDeviceGetUUID(handle),
        accelerator=accelerator,
        model=nvml.nvmlDeviceGetName(handle),
        memory_bytes=int(memory.total) if memory else 0,
    )


def _computing(nvml: Any, handle: Any) -> list[int]:
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    except nvml.NVMLError_FunctionNotFound:  # drivers before 510
        found = nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
    return [process.pid for process in found]


def _asked(nvml: Any, ask: Callable[[Any], Any], handle: Any) -> Any:
    """Return an answer, or None where the device or its driver has no such thing."""
    try:
        return ask(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None


def _not_told(nvml: Any) -> tuple[type[Exception], ...]:
    return nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission
