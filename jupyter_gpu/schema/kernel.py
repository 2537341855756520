"""One kernel's own choices within its Profile."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from jupyter_gpu.schema.base import ByteSize, Priority, Schema, Word, format_bytes
from jupyter_gpu.schema.profile import Profile
from jupyter_gpu.schema.resources import Accelerator, Resources


class KernelOptions(Schema):
    """What one kernel asks for instead of its Profile's defaults; None is the Profile's own."""

    accelerator: Accelerator | None = None
    gpus: int | None = Field(None, ge=1, description="Devices; for none, choose a profile without.")
    product: Word | None = Field(None, min_length=1, description="What the device's model must contain, like 'A100'.")
    cpus: float | None = Field(None, gt=0)
    memory_bytes: ByteSize | None = Field(None, gt=0, alias="memory", description="Accepts '4GiB'.")
    queue: str | None = Field(None, min_length=1)
    priority: Priority | None = None

    def resources(self, name: str, profile: Profile) -> Resources:
        """Return the size of the kernel.

        Raises:
            ValueError: it is out of the Profile's bounds; the text says which, and what the bound is.
        """
        own, bounds = profile.resources, profile.bounds
        most: dict[str, float] = {
            "gpus": own.gpus if bounds.max_gpus is None else bounds.max_gpus,
            "cpus": own.cpus if bounds.max_cpus is None else bounds.max_cpus,
            "memory_bytes": own.memory_bytes if bounds.max_memory_bytes is None else bounds.max_memory_bytes,
        }
        changes: dict[str, Any] = {key: value for key in most if (value := getattr(self, key)) is not None}
        for key, value in changes.items():
            if value > most[key]:
                wants, limit = (format_bytes(int(n)) if key == "memory_bytes" else f"{n:g}" for n in (value, most[key]))
                raise ValueError(f"{key.removesuffix('_bytes')}: {wants} is more than profile {name!r} allows ({limit})")
        if self.accelerator is not None:
            changes["accelerator"] = self.accelerator
        if self.product is not None:
            changes["product"] = self.product
        return own.model_copy(update=changes)
