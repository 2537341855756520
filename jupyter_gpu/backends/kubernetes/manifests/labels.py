"""The labels and annotations of our objects, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_gpu.names import object_name
from jupyter_gpu.schema import WorkloadSpec

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "jupyter-gpu"

OWNER = "jupyter-gpu/owner"  # label: a name made of the account; annotation: the account itself
WORKLOAD = "jupyter-gpu/workload"  # label: the object name of the id
KIND = "jupyter-gpu/kind"
ATTEMPT = "jupyter-gpu/attempt"
ROLE = "jupyter-gpu/role"  # label of Leases: client or keeper

ID = "jupyter-gpu/id"
PROTOCOL_NUMBER = "jupyter-gpu/protocol"
SPEC = "jupyter-gpu/spec"
CONTENT = "jupyter-gpu/content"
SEQUENCE = "jupyter-gpu/sequence"
CANCEL = "jupyter-gpu/cancel"  # the Reason why it must end
CANCELLED_AT = "jupyter-gpu/cancelled-at"  # since when
HOLDER = "jupyter-gpu/holder"  # name of a client's Lease
STARTED = "jupyter-gpu/started"  # when it started, once it is being ended: its pods may not stay
UNHELD_SINCE = "jupyter-gpu/unheld-since"
END = "jupyter-gpu/end"  # the Reason and time of an end that has been settled
USAGE = "jupyter-gpu/usage"  # what it had used by then

RANK = "batch.kubernetes.io/job-completion-index"  # written by the Job controller


def owner_label(owner: str) -> str:
    """Return an account's name as the value of a label."""
    return object_name(owner)


def selector(owner: str) -> str:
    """Return the label selector for all that belongs to an account."""
    return f"{MANAGED_BY}={MANAGER},{OWNER}={owner_label(owner)}"


def attempt_name(id: str, attempt: int) -> str:
    """Return the name of an attempt's Job and Secret."""
    return f"{object_name(id)}-{attempt}"


def labels_of(spec: WorkloadSpec, attempt: int) -> dict[str, str]:
    """Return the labels of everything that belongs to one attempt."""
    return {
        MANAGED_BY: MANAGER,
        OWNER: owner_label(spec.owner),
        WORKLOAD: object_name(spec.id),
        KIND: spec.kind.value,
        ATTEMPT: str(attempt),
    }


def content_of(spec: WorkloadSpec) -> str:
    """Return the content hash as annotations hold it."""
    return spec.content_hash()[:32]


def workload_of(thing: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the Workload's object name and the attempt that an object belongs to; None if it is none of ours."""
    labels = thing["metadata"].get("labels") or {}
    name, attempt = labels.get(WORKLOAD), labels.get(ATTEMPT, "")
    return (name, int(attempt)) if name and attempt.isdecimal() else None
