"""Amounts as Kubernetes writes them, and what a ResourceQuota says when it refuses."""

from __future__ import annotations

import re
from dataclasses import dataclass

_REFUSAL = re.compile(
    r"exceeded quota: (?P<quota>.+?), requested: (?P<requested>.*?), used: (?P<used>.*?), limited: (?P<limited>.*)"
)


def quantity(text: str) -> float:
    """Return the number in ``500m``, ``4Gi``, ``2``."""
    from kubernetes.utils.quantity import parse_quantity  # loading the client takes time, and many uses need no amounts

    return float(parse_quantity(text))


@dataclass(frozen=True)
class Excess:
    """One resource that a ResourceQuota refuses."""

    quota: str
    resource: str
    asked: float
    used: float
    limit: float

    @property
    def is_for_ever(self) -> bool:
        """Whether waiting can't help: it asks for more than the quota's whole."""
        return self.asked > self.limit


def excess_of(message: str) -> Excess | None:
    """Return what exceeds a quota by the words of the API server's refusal; the resource that is hardest to get, if several do.

    Source: plugin/pkg/admission (resourcequota/controller.go, ``checkRequest``) of Kubernetes:
    ``exceeded quota: NAME, requested: RESOURCE=AMOUNT,..., used: ..., limited: ...``.
    """
    if not (match := _REFUSAL.search(message)):
        return None
    requested, used, limited = (_amounts(match[part]) for part in ("requested", "used", "limited"))
    excesses = [
        Excess(match["quota"], resource, asked, used.get(resource, 0.0), limited[resource])
        for resource, asked in requested.items()
        if resource in limited
    ]
    return max(excesses, key=lambda excess: (excess.is_for_ever, "/" in excess.resource), default=None)


def _amounts(text: str) -> dict[str, float]:
    pairs = (pair.rpartition("=") for pair in text.split(","))
    return {name.strip(): quantity(amount.strip()) for name, _, amount in pairs if name}
