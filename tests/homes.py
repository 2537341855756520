"""A home folder of Jupyter's for one test: configuration, data and runtime folders that nothing else sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.cli.main import run
from jupyter_gpu.config import CONFIG_NAME
from jupyter_gpu.connection import Gpu, connect
from jupyter_gpu.schema import WorkloadSpec

COMMAND_S = 60.0


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it said."""

    exit_code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What it answered as JSON."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Home:
    """Where Jupyter keeps everything of one test."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    @property
    def variables(self) -> dict[str, str]:
        """What makes a process live here."""
        kinds = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "IPYTHONDIR": "ipython",
        }
        return {name: str(self.folder / kind) for name, kind in kinds.items()}

    @property
    def state(self) -> Path:
        """The state folder of its local place."""
        return self.folder / "state"

    @property
    def local(self) -> dict[str, Any]:
        """Settings of its local place: two devices that do not exist."""
        return {"backend": "local", "state_folder": str(self.state), "emulated_gpus": 2}

    def configure(self, **section: Any) -> Path:
        """Write the configuration file, and return its path; the local place is there unless ``places`` says otherwise."""
        return self.write_config(json.dumps({"JupyterGpu": {"places": {"local": self.local}, **section}}), ".json")

    def write_config(self, text: str, suffix: str) -> Path:
        """Write a configuration file of any content."""
        path = self.folder / "config" / f"{CONFIG_NAME}{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def install_kernelspec(self, name: str, content: Mapping[str, Any]) -> None:
        """Put a kernelspec where Jupyter finds it."""
        folder = self.folder / "data" / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(json.dumps(content))

    def cli(self, *words: str) -> Result:
        """Run the command line in this process."""
        self.capture.readouterr()
        exit_code = run(words)
        captured = self.capture.readouterr()
        return Result(exit_code, captured.out, captured.err)

    def command(self, *words: str, **variables: str) -> Result:
        """Run the command line as a process of its own."""
        command = [sys.executable, "-m", "jupyter_gpu", *words]
        environment = {**os.environ, **self.variables, **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    def gpu(self) -> Gpu:
        """Return the place, as this process sees it."""
        return connect()

    def submit(self, spec: WorkloadSpec) -> None:
        """Submit a Workload."""
        self.gpu().connection.call(lambda services: services.backend.submit(spec)).result()


@dataclass(frozen=True)
class VirtualPlace:
    """A home whose place ``local`` is one of virtual time, with four devices."""

    home: Home
    backend: MemoryBackend

    def cli(self, *words: str) -> Result:
        """Run the command line in this process."""
        return self.home.cli(*words)

    def submit(self, *specs: WorkloadSpec) -> None:
        """Submit Workloads."""
        for spec in specs:
            self.home.submit(spec)

    def apply(self, text: str) -> Result:
        """Set its queues by a file of this content."""
        path = self.home.folder / "queues.yaml"
        path.write_text(text)
        return self.cli("queues", "apply", str(path))
