"""How busy the devices of a program are, as NVIDIA's driver tells it. Loaded only once the program runs.

Source: NVIDIA Management Library (NVML) API reference, "Device Queries".
"""

from __future__ import annotations

import _thread
import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_UUIDS = ("GPU-", "MIG-")
_UNKNOWN = (2, 6)  # NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Gpus:
    """Devices by their UUIDs, slices of a split one (MIG) too. What the driver does not know, like emulated ones, is left out.

    The driver is asked in a thread, for it may take seconds to answer, or never do: the loop that passes signals on must not
    wait for it.
    """

    def __init__(self, ids: list[str]) -> None:
        self._ids = [id for id in ids if id.startswith(_UUIDS)]
        self._library: Any = None
        self._is_usable = bool(self._ids)
        self._is_asking = False
        self._found: list[dict[str, Any]] = []

    def ask(self) -> None:
        """Ask the driver, unless it still owes an answer or there is none."""
        if not self._is_usable or self._is_asking:
            return
        self._is_asking, self._found = True, []
        try:
            _thread.start_new_thread(self._ask, ())
        except RuntimeError:  # no thread to be had
            self._is_asking = False

    def take(self) -> list[dict[str, Any]]:
        """Return what the driver has answered: ``id``, ``utilization`` (0 to 1, or None), ``memory_bytes`` (or None) of each."""
        if self._is_asking:
            return []
        found, self._found = self._found, []
        return found

    def _ask(self) -> None:
        try:
            if self._library is None:
                library = ctypes.CDLL(LIBRARY)
                if library.nvmlInitWithFlags(0):
                    raise OSError("the driver is not loaded")
                self._library = library  # never closed: closing may make the driver reset idle GPUs
            self._found = [reading for id in tuple(self._ids) if (reading := self._read(id))]
            self._is_usable = bool(self._ids)
        except (OSError, AttributeError):  # no library, no driver, or one that lacks what we ask
            self._is_usable = False
        finally:
            self._is_asking = False

    def _read(self, id: str) -> dict[str, Any] | None:
        handle, used, memory = ctypes.c_void_p(), _Utilization(), _Memory()
        if failure := self._library.nvmlDeviceGetHandleByUUID(id.encode(), ctypes.byref(handle)):
            if failure in _UNKNOWN:
                self._ids.remove(id)
            return None
        is_told = not self._call("nvmlDeviceGetUtilizationRates", handle, used)  # of a slice it is not
        has_memory = not self._call("nvmlDeviceGetMemoryInfo", handle, memory)
        return {
            "id": id,
            "utilization": used.gpu / 100 if is_told else None,
            "memory_bytes": memory.used if has_memory else None,
        }

    def _call(self, name: str, handle: Any, answer: Any) -> int:
        function = getattr(self._library, name, None)
        return -1 if function is None else int(function(handle, ctypes.byref(answer)))
