"""What all blocking code of a local place works on: its folder, its store, its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_gpu.backends.local import processes, rows
from jupyter_gpu.backends.local.devices import Devices, find_devices
from jupyter_gpu.backends.local.state import StateFolder
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.schema import LocalSettings


@dataclass(frozen=True)
class Site:
    """One open local place."""

    name: str
    settings: LocalSettings
    state: StateFolder
    store: Store
    keeper: Sequence[str] | None
    """What to start, detached, when something must wait and no Keeper is there."""

    def devices(self) -> Devices:
        """Return the devices as they are now. What runs on, although the store knows nothing of it any more, is a stranger."""
        return find_devices(self.settings, self._is_ours)

    def _is_ours(self, pid: int) -> bool:
        attempt = processes.attempt_of(self.state, pid)
        return attempt is not None and rows.is_active(self.store, *attempt)
