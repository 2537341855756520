"""Leases: that a client lives, and who does the Keeper's work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from jupyter_gpu.backends.kubernetes.manifests.labels import MANAGED_BY, MANAGER, OWNER, ROLE, owner_label

CLIENT, KEEPER = "client", "keeper"

_TOLERANCE = timedelta(seconds=2)  # clocks of different hosts are not compared more finely


def lease(name: str, role: str, owner: str, holder: str, duration_s: float, now: datetime) -> dict[str, Any]:
    """Return a Lease.

    Args:
        name: of the object.
        role: client or keeper.
        owner: the account.
        holder: who has it, in words for people.
        duration_s: how long it is good for after each renewal.
        now: the API server's time.
    """
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": {MANAGED_BY: MANAGER, OWNER: owner_label(owner), ROLE: role}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": math.ceil(duration_s), **renewal(now)},
    }


def renewal(now: datetime) -> dict[str, str]:
    """Return the field that says a Lease is good again, from ``now`` on."""
    return {"renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}


def expiry_of(lease: Mapping[str, Any]) -> datetime:
    """Return until when a Lease is good."""
    spec = lease["spec"]
    return datetime.fromisoformat(spec["renewTime"]) + timedelta(seconds=spec["leaseDurationSeconds"])


def is_good(lease: Mapping[str, Any], now: datetime) -> bool:
    """Whether its holder may be alive."""
    return expiry_of(lease) + _TOLERANCE > now
