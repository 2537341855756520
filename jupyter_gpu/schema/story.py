"""What became of Workloads: each phase with its time and reason, and what they used."""

from __future__ import annotations

from pydantic import Field

from jupyter_gpu.schema.base import ByteSize, Schema, Time
from jupyter_gpu.schema.workload import Kind, Phase, Reason


class Event(Schema):
    """A Workload went into a phase, or the reason of its phase became another."""

    time: Time
    attempt: int = Field(ge=1)
    phase: Phase
    reason: Reason | None = None


class Usage(Schema):
    """What one attempt at a Workload used; of one that runs, up to now."""

    id: str
    attempt: int = Field(ge=1)
    name: str
    owner: str
    queue: str
    kind: Kind
    priority: int = 0
    resource: str = Field("", description="Resource name of its devices; empty if it had none.")
    gpus: int = Field(0, ge=0, description="Devices of all replicas together.")
    started: Time = Field(description="When it got its devices.")
    ended: Time | None = Field(None, description="None while it has them.")
    phase: Phase
    device_seconds: float = Field(0.0, ge=0, description="Devices times seconds.")
    measured_device_seconds: float = Field(0.0, ge=0, description="The part of them in which the devices' use was measured.")
    idle_device_seconds: float = Field(0.0, ge=0, description="The part of the measured ones in which a device did nothing.")
    cpu_seconds: float = Field(0.0, ge=0, description="Of all its processes.")
    peak_memory_bytes: ByteSize = Field(0, description="The most that its processes had at once; 0 where it was not measured.")

    @property
    def idle_share(self) -> float | None:
        """The fraction of the measured time in which the devices did nothing; None where nothing was measured."""
        return self.idle_device_seconds / self.measured_device_seconds if self.measured_device_seconds else None
