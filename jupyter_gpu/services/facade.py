"""All services of one place."""

from __future__ import annotations

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.services.kernels import Kernels
from jupyter_gpu.services.queues import Queues
from jupyter_gpu.services.workloads import Workloads


class Services:
    """All services of one place; they live on the event loop that made them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.workloads = Workloads(backend)
        self.kernels = Kernels(backend)
        self.queues = Queues(backend)

    async def aclose(self) -> None:
        """Let go of every kernel and of the place; what runs there runs on."""
        await self.kernels.aclose()
        await self.backend.aclose()
