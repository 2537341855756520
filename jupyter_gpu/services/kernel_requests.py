"""What is asked for when a kernel is: a KERNEL Workload, by its profile."""

from __future__ import annotations

from typing import Any

from jupyter_gpu.schema import Kind, Port, Profile, WorkloadSpec

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
FIRST_PORT = 5551  # any number will do in a pod of its own; locally they are only labels


def kernel_ports(*, loopback: bool = False) -> tuple[Port, ...]:
    """Return the ports of a KERNEL: Jupyter's five, and its parent's own."""
    return tuple(Port(name=n, number=FIRST_PORT + i, loopback=loopback) for i, n in enumerate((*CHANNELS, "parent")))


def kernel_request(profile_name: str, profile: Profile, **fields: Any) -> WorkloadSpec:
    """Return the request for a kernel of a profile.

    Args:
        profile_name: the profile's name.
        profile: what the site offers by that name.
        fields: of the request: what no profile says (``id``, ``name``, ``command``, ``secrets``), and what is to be otherwise.

    Raises:
        ValidationError: of pydantic; a field has a wrong value.
    """
    offered = {
        "kind": Kind.KERNEL,
        "profile": profile_name,
        "queue": profile.queue,
        "priority": profile.priority,
        "resources": profile.resources,
        "environment": profile.environment.model_dump(),
        "ports": kernel_ports(),
        "start_timeout_s": profile.start_timeout_s,
        "orphan_after_s": profile.orphan_after_s,
        "orphan_running_after_s": profile.orphan_running_after_s,
        "grace_s": profile.grace_s,
        "ttl_s": profile.ttl_s,
    }
    return WorkloadSpec.model_validate(offered | fields)
