"""The devices of this machine: NVIDIA's by NVML, or emulated ones to try things out; and who else computes on them."""

from __future__ import annotations

from collections.abc import Callable

from jupyter_gpu.backends.local.devices.emulated import emulated_devices
from jupyter_gpu.backends.local.devices.found import Devices
from jupyter_gpu.backends.local.devices.nvidia import NvidiaDevices
from jupyter_gpu.backends.local.devices.strangers import account
from jupyter_gpu.schema import LocalSettings

__all__ = ["Devices", "account", "find_devices"]

_NVIDIA = NvidiaDevices()


def find_devices(settings: LocalSettings, is_ours: Callable[[int], bool]) -> Devices:
    """Return the devices of this machine, and who else computes on them.

    Args:
        settings: of the place; ``emulated_gpus`` replaces what is there.
        is_ours: whether a process, by its pid, belongs to one of our Workloads.
    """
    if settings.emulated_gpus is None:
        return _NVIDIA.look(is_ours)
    return emulated_devices(settings.emulated_gpus, settings.emulated_models)
