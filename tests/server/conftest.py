"""A configured site for tests of the ways in: files on Jupyter's configuration path, as an admin would write them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

import jupyter_gpu
from jupyter_gpu.connection import Gpu
from jupyter_gpu.schema import KubernetesSettings, LocalSettings

READY_S = 60.0


@dataclass(frozen=True)
class ASite:
    """One place and the profile ``gpu`` on it, as the configuration file says it."""

    place: str
    settings: LocalSettings | KubernetesSettings
    image: str | None
    folder: Path

    def write(self, **profile: Any) -> None:
        """Write the configuration; ``profile`` changes the profile ``gpu``."""
        settings = self.settings.model_dump(mode="json", exclude_defaults=True)
        chosen = {"place": self.place, "resources": {"gpus": 1, "cpus": 0.5, "memory_bytes": "512MiB"}, **profile}
        if self.image:
            chosen.setdefault("environment", {"image": self.image})
        section = {"places": {self.place: {"backend": self.place, **settings}}, "profiles": {"gpu": chosen}}
        (self.folder / "jupyter_gpu_config.json").write_text(json.dumps({"JupyterGpu": section}))

    def connect(self) -> Gpu:
        """Connect as any client would."""
        return jupyter_gpu.connect(self.place)


@pytest.fixture(params=["local", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ASite]:
    """The place of this test, in a configuration folder of its own."""
    folder = tmp_path / "config"
    folder.mkdir()
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    settings = request.getfixturevalue(f"{request.param}_settings")
    if isinstance(settings, KubernetesSettings):
        settings = settings.model_copy(update={"kubeconfig": Path(os.environ["KUBECONFIG"])})
    image = os.environ.get("JUPYTER_GPU_TEST_IMAGE", "localhost/pyk:1") if request.param == "kubernetes" else None
    site = ASite(request.param, settings, image, folder)
    site.write()
    yield site
    site.write()  # a test may have broken it
    with site.connect() as gpu:
        for workload in gpu.list():
            gpu.cancel(workload.spec.id)
            with gpu.follow(workload.spec.id) as changes:
                for _ in changes:
                    pass
        gpu.connection.users = 1  # provisioners keep theirs as long as the process; a test is one


@dataclass
class AKernel:
    """A kernel with its manager and client."""

    manager: AsyncKernelManager
    client: AsyncKernelClient

    async def run(self, code: str) -> str:
        """Run a cell and return what it printed.

        Raises:
            AssertionError: it raised.
        """
        printed: list[str] = []

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            printed.append(content.get("text") or "".join(content.get("traceback", ())))

        reply = await self.client.execute_interactive(code, timeout=READY_S, output_hook=take)
        assert reply["content"]["status"] == "ok", "".join(printed)
        return "".join(printed).strip()

    async def ready(self) -> None:
        """Wait until it answers."""
        await self.client.wait_for_ready(timeout=READY_S)


@asynccontextmanager
async def a_kernel(name: str = "gpu", **options: Any) -> AsyncIterator[AKernel]:
    """Start a kernel by its kernelspec, and shut it down at the end."""
    manager = AsyncKernelManager(kernel_name=name, **options)
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    kernel = AKernel(manager, client)
    try:
        await kernel.ready()
        yield kernel
    finally:
        kernel.client.stop_channels()
        await manager.shutdown_kernel(now=True)
