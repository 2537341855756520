"""Choose which devices go to whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from jupyter_gpu.queueing import Decision
from jupyter_gpu.schema import Claim, Device


def choose(decision: Decision, claims: Mapping[str, Claim], free: Sequence[Device]) -> Mapping[str, Sequence[str]]:
    """Return the ids of the devices of those who start, by Workload; one who can't have all that it wants is left out.

    Args:
        decision: who starts, and with how many devices of which model.
        claims: what they want, by id.
        free: the devices that can be had.
    """
    left: dict[tuple[str, str], list[str]] = defaultdict(list)
    for device in free:
        left[device.accelerator.resource, device.model].append(device.id)
    given: dict[str, list[str]] = {}
    for id in decision.starts:
        wanted = {(claims[id].device or "", model): count for model, count in decision.models.get(id, {}).items()}
        if any(len(left[kind]) < count for kind, count in wanted.items()):
            continue
        given[id] = [device for kind, count in wanted.items() for device in left[kind][:count]]
        for kind, count in wanted.items():
            left[kind] = left[kind][count:]
    return given
