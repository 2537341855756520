"""The words of jupyter-gpu as frozen pydantic classes: what is asked for, what is shown, settings. No I/O.

From these classes come validation of REST, YAML and configuration, JSON Schema for forms, and the TypeScript types.
"""

from jupyter_gpu.schema.base import ByteSize, GiB, KiB, MiB, Schema, format_bytes, parse_bytes
from jupyter_gpu.schema.kernel import KernelOptions
from jupyter_gpu.schema.logs import FRAME, LogLine, Stream
from jupyter_gpu.schema.place import Device, Missing, Node, Place, QueueStatus
from jupyter_gpu.schema.profile import Bounds, Profile
from jupyter_gpu.schema.resources import NVIDIA_GPU, Accelerator, Resources
from jupyter_gpu.schema.settings import PASSED_VARIABLES, KubernetesSettings, LocalSettings, PlaceSettings, Reach
from jupyter_gpu.schema.workload import (
    Changes,
    Environment,
    Kind,
    Phase,
    Port,
    Reason,
    ReplicaStatus,
    Selector,
    Start,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)

__all__ = [
    "FRAME",
    "NVIDIA_GPU",
    "PASSED_VARIABLES",
    "Accelerator",
    "Bounds",
    "ByteSize",
    "Changes",
    "Device",
    "Environment",
    "GiB",
    "KernelOptions",
    "KiB",
    "Kind",
    "KubernetesSettings",
    "LocalSettings",
    "LogLine",
    "MiB",
    "Missing",
    "Node",
    "Phase",
    "Place",
    "PlaceSettings",
    "Port",
    "Profile",
    "QueueStatus",
    "Reach",
    "Reason",
    "ReplicaStatus",
    "Resources",
    "Schema",
    "Selector",
    "Start",
    "Stream",
    "Workload",
    "WorkloadSpec",
    "WorkloadStatus",
    "format_bytes",
    "parse_bytes",
]
