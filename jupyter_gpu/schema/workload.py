"""A Workload: what is asked for (WorkloadSpec), and how it stands (WorkloadStatus)."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any

from pydantic import Field

from jupyter_gpu.schema.base import PortName, Priority, Schema, Time, VariableName, Word
from jupyter_gpu.schema.resources import Resources


class Kind(StrEnum):
    """What a Workload is for."""

    KERNEL = "kernel"
    BATCH = "batch"
    TRAINING = "training"
    SERVICE = "service"


class Start(StrEnum):
    """How the replicas of a Workload start."""

    TOGETHER = "together"
    AS_THEY_FIT = "as_they_fit"


class Phase(StrEnum):
    """Where a Workload stands; the last three are final."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing changes any more, short of a new attempt."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)


class Reason(Schema):
    """Why a phase is what it is: a stable code, a sentence for people, and the facts behind it."""

    code: str = Field(description="Stable word of two parts, like queue.busy or end.exit_code.", pattern=r"^[a-z]+\.[a-z_]+$")
    message: str = Field(description="What happened, to what, what to do.")
    facts: dict[str, Any] = Field(default_factory=dict, description="Numbers and names behind the sentence.")

    @property
    def final_phase(self) -> Phase:
        """The phase of a Workload that is ended for this reason."""
        if self.code == "end.completed":
            return Phase.SUCCEEDED
        return Phase.CANCELLED if self.code == "end.cancelled" else Phase.FAILED


class Port(Schema):
    """A named port of a replica: fixed in a pod, chosen locally, given as ``JUPYTER_GPU_PORT_<NAME>``.

    The variable holds a number, or for a KERNEL on a local place the path of a Unix socket.
    """

    name: PortName = Field(description="Name within the Workload, like shell or http.")
    number: int = Field(ge=1, le=65535, description="TCP port in a pod; on a local place a mere label.")
    loopback: bool = Field(False, description="In a pod it listens on 127.0.0.1 only, and is reached by port-forward.")


class Environment(Schema):
    """Where a program runs: the same object for a kernel and for what it submits."""

    image: Word | None = Field(None, description="Container image; None on a local place.")
    interpreter: Word | None = Field(None, description="Python of a local place; None is the one jupyter-gpu runs in.")
    variables: dict[VariableName, Word] = Field(default_factory=dict, description="Environment variables.")
    working_directory: Word | None = Field(None, description="Where the program starts; None is home.")


class WorkloadSpec(Schema):
    """What is asked for. It holds no secret: it may be shown, logged and copied."""

    id: Word = Field(min_length=1, max_length=253, description="Chosen by the client; a kernel's is its kernel id.")
    name: Word = Field(min_length=1, max_length=1000, description="For people.")
    owner: str = Field("", description="Account the place gives this client; filled in by the backend.")
    server: str = Field("", description="Hash of the Jupyter server that launched it; empty for papermill, console and CLI.")
    kind: Kind
    profile: str = Field("", description="Name of the Profile it came from.")
    queue: Word = Field("default", min_length=1, max_length=253)
    priority: Priority = Field(0, description="Higher starts first.")
    replicas: int = Field(1, ge=1, le=10_000)
    start: Start = Start.TOGETHER
    max_parallel: int | None = Field(None, ge=1, description="As they fit: how many replicas may run at once; None is no limit.")
    resources: Resources = Field(default_factory=Resources, description="Of each replica.")
    environment: Environment = Field(default_factory=Environment)
    command: tuple[Word, ...] = Field(min_length=1, description="Program and arguments; a kernel's holds {connection_file}.")
    ports: tuple[Port, ...] = ()
    secrets: tuple[str, ...] = Field((), description="Names of the secrets that travel beside the spec.")
    labels: dict[str, str] = Field(default_factory=dict)
    start_timeout_s: float = Field(300.0, gt=0, description="Longest STARTING may take.")
    max_runtime_s: float | None = Field(None, gt=0, description="Over the tries a place makes by itself; None is no limit.")
    orphan_after_s: float | None = Field(None, gt=0, description="Seconds without a client until it ends while QUEUED.")
    orphan_running_after_s: float | None = Field(None, gt=0, description="The same for a RUNNING KERNEL.")
    relaunch_within_s: float = Field(60.0, gt=0, description="Seconds a KERNEL's device is kept for a relaunch after its death.")
    retries: int = Field(0, ge=0, le=1000, description="How often it is tried again after it failed by itself.")
    preemptible: bool = Field(True, description="Whether it may be told to yield to others.")
    grace_s: float = Field(10.0, ge=0, description="Seconds from TERM to KILL.")
    ttl_s: float = Field(86_400.0, ge=0, description="Seconds its story is kept after the end.")

    def content_hash(self) -> str:
        """Return what tells whether two requests ask for the same (SHA-256, 64 hex digits).

        Who asks is no part of it, nor are defaults, so that a field which is added later changes nothing.
        """
        content = self.model_dump(mode="json", exclude={"owner"}, exclude_defaults=True)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class ReplicaStatus(Schema):
    """How one replica of a Workload stands."""

    rank: int = Field(ge=0)
    phase: Phase
    reason: Reason | None = None
    node: str | None = Field(None, description="Host it runs on.")
    devices: tuple[str, ...] = Field((), description="Ids of the devices it holds or held, as far as the place tells.")


class WorkloadStatus(Schema):
    """How a Workload stands now."""

    id: str
    phase: Phase
    ready: bool = Field(False, description="Every replica is up and its ports may be opened.")
    reason: Reason | None = None
    attempt: int = Field(1, ge=1)
    position: int | None = Field(None, ge=1, description="Place in the queue, 1 is next; None when unknown or not QUEUED.")
    replicas: tuple[ReplicaStatus, ...] = ()
    created: Time = Field(description="When this attempt was asked for.")
    started: Time | None = Field(None, description="When it became RUNNING.")
    ended: Time | None = None
    sequence: int = Field(0, description="Order of arrival, given by the place.")


class Workload(Schema):
    """A Workload as a place shows it."""

    spec: WorkloadSpec
    status: WorkloadStatus


class Selector(Schema):
    """Which Workloads a watch shows: those for which every given field matches."""

    ids: frozenset[str] | None = None
    kinds: frozenset[Kind] | None = None
    queue: str | None = None
    server: str | None = None

    def matches(self, spec: WorkloadSpec) -> bool:
        """Whether a Workload is one of those asked for."""
        return (
            (self.ids is None or spec.id in self.ids)
            and (self.kinds is None or spec.kind in self.kinds)
            and (self.queue is None or spec.queue == self.queue)
            and (self.server is None or spec.server == self.server)
        )


class Changes(Schema):
    """One step of a watch.

    A complete step holds all there is: what an earlier step showed and this one lacks is gone. Others hold what changed since.
    """

    complete: bool
    workloads: tuple[Workload, ...] = ()
    removed: tuple[str, ...] = Field((), description="Ids that are gone (never in a complete step).")
