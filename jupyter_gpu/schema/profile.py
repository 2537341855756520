"""A Profile: a named choice that an admin offers. Profiles become kernelspecs."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from jupyter_gpu.schema.base import ByteSize, Priority, Schema
from jupyter_gpu.schema.resources import Resources
from jupyter_gpu.schema.workload import Environment


class Bounds(Schema):
    """The most that one kernel of a Profile may ask for; None leaves only the Profile's own size."""

    max_gpus: int | None = Field(None, ge=0)
    max_cpus: float | None = Field(None, gt=0)
    max_memory_bytes: ByteSize | None = Field(None, gt=0)


class Profile(Schema):
    """A named choice: where, how large, with what, in which queue."""

    display_name: str = Field("", description="In the launcher; the profile's name when empty.")
    place: str = Field("local", description="Name of one of the configured places.")
    resources: Resources = Field(default_factory=Resources)
    bounds: Bounds = Field(default_factory=Bounds)
    environment: Environment = Field(default_factory=Environment)
    queue: str = "default"
    priority: Priority = 0
    start_timeout_s: float = Field(300.0, gt=0, description="Longest a kernel may take from its place in the queue to ready.")
    orphan_after_s: float = Field(600.0, gt=0, description="Seconds without a client until a QUEUED kernel ends.")
    orphan_running_after_s: float = Field(86_400.0, gt=0, description="The same for a RUNNING one of a server.")
    grace_s: float = Field(10.0, ge=0, description="Seconds from TERM to KILL.")
    ttl_s: float = Field(3600.0, ge=0, description="Seconds the story of an ended kernel is kept.")
    argv: tuple[str, ...] | None = Field(None, description="Kernel command of a made kernelspec; ipykernel's when absent.")
    language: str = "python"
    kernelspec_metadata: dict[str, Any] = Field(default_factory=dict, description="Merged into the kernelspec's metadata.")
