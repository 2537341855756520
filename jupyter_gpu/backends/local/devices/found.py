"""What a look at this machine's devices found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jupyter_gpu.schema import Device


@dataclass(frozen=True)
class Devices:
    """What was found."""

    devices: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know, like why there is none."""
    unseen: frozenset[str] = frozenset()
    """Ids of those whose only strangers are processes that can't be seen from here, like those of another container."""

    @property
    def capacity(self) -> dict[str, int]:
        """Devices in all, by resource name."""
        return dict(Counter(device.accelerator.resource for device in self.devices))

    def free(self, held: Collection[str]) -> dict[str, list[str]]:
        """Return the ids of those that nobody holds and nobody else computes on, by resource name."""
        found: dict[str, list[str]] = {resource: [] for resource in self.capacity}
        for device in self.devices:
            if device.id not in held and device.foreign is None:
                found[device.accelerator.resource].append(device.id)
        return found

    def held_by(self, holders: Mapping[str, str]) -> tuple[Device, ...]:
        """Return the devices with their holders.

        Args:
            holders: id of the Workload by the id of the device that it holds. Processes that can't be seen on such a device are
                taken for the Workload's own: its program may run in a container.
        """
        return tuple(self._held(device, holders[device.id]) if device.id in holders else device for device in self.devices)

    def _held(self, device: Device, holder: str) -> Device:
        foreign = None if device.id in self.unseen else device.foreign
        return device.model_copy(update={"holder": holder, "foreign": foreign})
