"""What a replica holds while it runs."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, model_validator

from jupyter_gpu.schema.accelerators import OWN_VARIABLE, kind_of
from jupyter_gpu.schema.base import ByteSize, GiB, Schema, VariableName, Word


class Accelerator(Schema):
    """A countable device by its resource name, and the variable that makes a device visible to a program.

    A plain string is read as the resource name: ``nvidia.com/gpu``, ``nvidia.com/mig-1g.10gb``, ``amd.com/gpu``... The variable
    is then the one of `jupyter_gpu.schema.accelerators`, and ``JUPYTER_GPU_DEVICES`` for a name that is not there.
    """

    resource: str = Field(description="Extended resource name of Kubernetes, as the device plugin counts it.")
    visible_variable: VariableName = Field(description="Variable that lists the devices a program may see.")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"resource": value}
        if isinstance(value, dict) and isinstance(name := value.get("resource"), str):
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", name):
                raise ValueError(f"{name!r} is no accelerator; it is named like nvidia.com/gpu or nvidia.com/mig-1g.10gb")
            kind = kind_of(name)
            value = {"visible_variable": kind.visible_variable if kind else OWN_VARIABLE, **value}
        return value

    def __str__(self) -> str:
        return self.resource


NVIDIA_GPU = Accelerator.model_validate("nvidia.com/gpu")


class Resources(Schema):
    """What one replica holds while it runs."""

    accelerator: Accelerator = Field(NVIDIA_GPU, description="Kind of device that ``gpus`` counts.")
    product: Word | None = Field(
        None, min_length=1, max_length=63, description="What the device's model must contain, like 'A100'; None is any."
    )
    gpus: int = Field(0, ge=0, le=4096, description="Devices of that kind.")
    cpus: float = Field(1.0, gt=0, le=4096, description="Cores; 0.5 is half a core.")
    memory_bytes: ByteSize = Field(4 * GiB, gt=0, description="Limit; accepts '4GiB'.")
    shm_bytes: ByteSize | None = Field(None, gt=0, description="/dev/shm; half of memory when absent.")
