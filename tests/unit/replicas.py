"""A real runner beside a real program, without a backend: it gets a specification, and leaves an attempt's folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_gpu.backends.local.logs import LogReader
from jupyter_gpu.backends.sending import replica_zip
from tests.builders import DEADLINE_S, MARKER

MIB = 1 << 20


@dataclass(frozen=True)
class ARunner:
    """A runner that was started, and the folder that it writes to."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def said(self) -> list[str]:
        """What its program has said so far."""
        return [line.text for line in self._lines() if line.report is None]

    def reports(self, kind: str) -> list[dict[str, Any]]:
        """Return its reports of one type so far."""
        return [line.report for line in self._lines() if line.report and line.report["report"] == kind]

    def content(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of its folder."""
        return dict(json.loads((self.folder / name).read_text()))

    def tell_to_stop(self, code: str, grace_s: float) -> None:
        """Ask for its end as a backend does."""
        wish = {"code": code, "message": "it has to", "grace_s": grace_s}
        (self.folder / "stop.json").write_text(json.dumps(wish))
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        return self.process.wait(DEADLINE_S)

    def _lines(self) -> list[Any]:
        reader = LogReader(self.folder / "log", 1)
        lines = []
        while (some := reader.read()) is not None:
            lines += some
        return lines + reader.last()


def start(
    where: Path, code: str, *, attempt: Path | None = None, variables: dict[str, str] | None = None, **changes: Any
) -> ARunner:
    """Start a runner whose program is a few lines of Python.

    Args:
        where: folder for its archive, its specification and its sockets.
        code: of the program.
        attempt: the folder that it writes to; in ``where`` when absent.
        variables: the runner's own; those of the program are part of the specification.
        changes: of the specification.
    """
    attempt = attempt or where / "attempt"
    attempt.mkdir(exist_ok=True)
    archive, path = where / "replica.zip", where / "replica.json"
    archive.write_bytes(replica_zip(compiled=True)[1])
    spec = {
        "protocol": 1,
        "id": "w-1",
        "attempt": 1,
        "rank": 0,
        "kind": "batch",
        "command": [sys.executable, "-S", "-E", "-c", code],
        "variables": {"PATH": os.environ["PATH"], **dict([MARKER])},
        "clean": True,
        "devices": [],
        "visible_variable": "CUDA_VISIBLE_DEVICES",
        "ports": {},
        "run_folder": str(where / "run"),
        "folder": str(attempt),
        "grace_s": 5,
        "sample_s": 0.1,
        **changes,
    }
    path.write_text(json.dumps(spec))
    with (where / "lock").open("w") as lock:
        own = {**dict([MARKER]), "JUPYTER_GPU_REPLICA": str(path), "JUPYTER_GPU_LOCK_FD": str(lock.fileno())}
        command = [sys.executable, "-S", "-E", str(archive)]
        return ARunner(subprocess.Popen(command, env={**own, **(variables or {})}, pass_fds=[lock.fileno()]), attempt)


def run(where: Path, code: str, **changes: Any) -> ARunner:
    """Start a runner, and wait for its end."""
    runner = start(where, code, **changes)
    runner.ended()
    return runner
