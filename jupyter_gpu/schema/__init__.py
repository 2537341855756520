"""The words of jupyter-gpu as frozen pydantic classes: what is asked for, what is shown, settings. No I/O.

From these classes come validation of REST, YAML and configuration, JSON Schema for forms, and the TypeScript types.
"""

from jupyter_gpu.schema.accelerators import AcceleratorKind, fits_product, kind_of
from jupyter_gpu.schema.base import ByteSize, GiB, KiB, MiB, Schema, format_bytes, parse_bytes
from jupyter_gpu.schema.demand import Amounts, Claim, Holding, Stock, amounts, longest_s, units
from jupyter_gpu.schema.forecast import Basis, Forecast, InTheWay
from jupyter_gpu.schema.kernel import KernelOptions
from jupyter_gpu.schema.logs import FRAME, LogLine, Stream, report_in
from jupyter_gpu.schema.place import Device, Missing, Node, Place, QueueStatus
from jupyter_gpu.schema.profile import Bounds, Profile
from jupyter_gpu.schema.queues import (
    CPU,
    DEFAULT_QUEUE,
    MEMORY,
    Borrowing,
    CohortSpec,
    Preemption,
    QueueSet,
    QueueSpec,
    Quota,
    WithinCohort,
    WithinQueue,
    unknown_resources,
)
from jupyter_gpu.schema.resources import NVIDIA_GPU, Accelerator, Resources
from jupyter_gpu.schema.settings import PASSED_VARIABLES, KubernetesSettings, LocalSettings, PlaceSettings, Reach
from jupyter_gpu.schema.story import Event, Usage
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
    "CPU",
    "DEFAULT_QUEUE",
    "FRAME",
    "MEMORY",
    "NVIDIA_GPU",
    "PASSED_VARIABLES",
    "Accelerator",
    "AcceleratorKind",
    "Amounts",
    "Basis",
    "Borrowing",
    "Bounds",
    "ByteSize",
    "Changes",
    "Claim",
    "CohortSpec",
    "Device",
    "Environment",
    "Event",
    "Forecast",
    "GiB",
    "Holding",
    "InTheWay",
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
    "Preemption",
    "Profile",
    "QueueSet",
    "QueueSpec",
    "QueueStatus",
    "Quota",
    "Reach",
    "Reason",
    "ReplicaStatus",
    "Resources",
    "Schema",
    "Selector",
    "Start",
    "Stock",
    "Stream",
    "Usage",
    "WithinCohort",
    "WithinQueue",
    "Workload",
    "WorkloadSpec",
    "WorkloadStatus",
    "amounts",
    "fits_product",
    "format_bytes",
    "kind_of",
    "longest_s",
    "parse_bytes",
    "report_in",
    "units",
    "unknown_resources",
]
