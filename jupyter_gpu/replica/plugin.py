"""Which devices a container was given, as the device plugin of their vendor tells it."""

from __future__ import annotations

import os

VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "HL_VISIBLE_DEVICES_UUID", "HABANA_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES", "CAMBRICON_VISIBLE_DEVICES", "HYGON_VISIBLE_DEVICES", "IX_VISIBLE_DEVICES",
    "ILUVATAR_COREX_VISIBLE_DEVICES", "MTHREADS_VISIBLE_DEVICES", "ENFLAME_VISIBLE_DEVICES", "CXPU_VISIBLE_DEVICES",
    "BR_PHY_CARDS", "AWS_NEURON_VISIBLE_DEVICES",
)  # fmt: skip


def devices() -> list[str]:
    """Return the ids of this container's devices; none where no plugin says which."""
    for name in VARIABLES:
        value = os.environ.get(name, "")
        if value and value not in ("all", "none", "void"):
            return value.split(",")
    return []
