"""A Place: where Workloads run, as it is now."""

from __future__ import annotations

from pydantic import Field

from jupyter_gpu.schema.base import ByteSize, Schema
from jupyter_gpu.schema.demand import Claim, Holding, Stock
from jupyter_gpu.schema.queues import QueueSet, Quota
from jupyter_gpu.schema.resources import Accelerator


class Device(Schema):
    """One accelerator of a place that names its devices."""

    id: str
    accelerator: Accelerator
    model: str = Field("", description="What the vendor calls it; 'emulated' for one that does not exist.")
    memory_bytes: ByteSize = 0
    parent: str | None = Field(None, description="Id of the device that it is a slice of; its model is the parent's.")
    emulated: bool = False
    holder: str | None = Field(None, description="Id of the Workload that has it.")
    foreign: str | None = Field(None, description="Who else computes on it, so that it is left alone.")


class Node(Schema):
    """One host of a place."""

    name: str
    devices: dict[str, int] = Field(default_factory=dict, description="Allocatable devices by resource name.")
    cpus: float = 0.0
    memory_bytes: ByteSize = 0
    ready: bool = True


class QueueStatus(Schema):
    """A department's share, and who is in it."""

    name: str
    cohort: str | None = None
    quotas: dict[str, Quota] = Field(
        default_factory=dict, description="Its share of each resource; empty where nothing is shared out."
    )
    used: dict[str, float] = Field(default_factory=dict, description="What its Workloads hold, in the units of `Quota`.")
    borrowed: dict[str, float] = Field(default_factory=dict, description="The part of it that is above its own share.")
    holders: tuple[str, ...] = Field((), description="Ids of the Workloads that hold devices or are about to.")
    waiters: tuple[str, ...] = Field((), description="Ids of the QUEUED ones, next first.")


class Missing(Schema):
    """Something that could not be read, and what would let it be."""

    what: str
    why: str
    right: str | None = Field(None, description="Verb and resource that this account lacks, like 'list nodes'.")


class Place(Schema):
    """Where Workloads run, as it is now."""

    name: str = Field(description="As the configuration names it.")
    backend: str = Field(description="local, kubernetes or memory.")
    identity: str = Field(description="Who this client is there.")
    address: str = Field("", description="State folder, or API server and namespace.")
    engines: tuple[str, ...] = Field((), description="What runs Workloads there: process, Job, JobSet...")
    capacity: dict[str, int] = Field(default_factory=dict, description="Devices in all, by resource name.")
    may_grow: bool = Field(False, description="Whether there may be more than ``capacity``: nodes are hidden, or may be added.")
    free: dict[str, int] | None = Field(None, description="Devices that nobody holds; None when it can't be told.")
    devices: tuple[Device, ...] = Field((), description="Each device, where the place names them.")
    nodes: tuple[Node, ...] = ()
    queues: tuple[QueueStatus, ...] = ()
    queue_set: QueueSet = Field(default_factory=QueueSet, description="How the queues are set up, as far as it can be read.")
    decides: bool = Field(
        False, description="Whether it is jupyter-gpu that decides there who starts, so that a forecast is exact."
    )
    stocks: tuple[Stock, ...] = Field((), description="Devices by resource name and model.")
    claims: tuple[Claim, ...] = Field((), description="What the QUEUED want, next first.")
    holdings: tuple[Holding, ...] = Field((), description="Who has what.")
    time_s: float = Field(0.0, description="Now, on the clock of ``claims`` and ``holdings``.")
    missing: tuple[Missing, ...] = Field((), description="What could not be read.")
    notes: tuple[str, ...] = Field((), description="What a person should know, like 'GPUs are emulated'.")
