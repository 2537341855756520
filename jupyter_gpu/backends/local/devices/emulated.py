"""Devices that do not exist, to try things out."""

from __future__ import annotations

import functools

from jupyter_gpu.backends.local.devices.found import Devices
from jupyter_gpu.schema import NVIDIA_GPU, Device

_NO_MODEL = ("emulated",)


@functools.cache
def emulated_devices(count: int, models: tuple[str, ...] = ()) -> Devices:
    """Return so many devices, of the models in turn."""
    models = models or _NO_MODEL
    devices = tuple(
        Device(id=f"GPU-emulated-{number}", accelerator=NVIDIA_GPU, model=models[number % len(models)], emulated=True)
        for number in range(count)
    )
    words = "the GPU is emulated: it does not exist" if count == 1 else f"the {count} GPUs are emulated: they do not exist"
    return Devices(devices, (f"{words}, and no program finds one",))
