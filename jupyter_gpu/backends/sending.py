"""What a backend sends along with a program: `jupyter_gpu.replica` as a zip, and its specification."""

from __future__ import annotations

import functools
import hashlib
import io
import py_compile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import jupyter_gpu.replica
from jupyter_gpu.backends.base import PROTOCOL
from jupyter_gpu.schema import WorkloadSpec

_PACKAGE = "jupyter_gpu_replica"
_MAIN = f"from {_PACKAGE}.run import main\nmain()\n"


@functools.cache
def replica_zip(*, compiled: bool) -> tuple[str, bytes]:
    """Return the name, ``replica-<hash>.zip``, and the content of the zip that a replica is started from.

    The same sources give the same bytes. ``compiled`` adds byte code for the Python that runs here, which saves the runner
    some 10 ms; an interpreter of another version passes over it.
    """
    sources = {f"{_PACKAGE}/{path.name}": path.read_bytes() for path in Path(jupyter_gpu.replica.__path__[0]).glob("*.py")}
    files = {"__main__.py": _MAIN.encode(), **sources}
    if compiled:
        files |= {f"{name}c": _byte_code(name, source) for name, source in files.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), files[name])
    content = buffer.getvalue()
    return f"replica-{hashlib.sha256(content).hexdigest()[:16]}.zip", content


def _byte_code(name: str, source: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "source.py"
        path.write_bytes(source)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), f"{path}c", dfile=name, doraise=True, invalidation_mode=mode)
        return Path(f"{path}c").read_bytes()


def replica_specification(spec: WorkloadSpec, *, attempt: int, rank: int, **place: Any) -> dict[str, Any]:
    """Return a replica's specification, as `jupyter_gpu.replica` defines it; ``place`` adds what only the backend knows."""
    return {
        "protocol": PROTOCOL,
        "id": spec.id,
        "attempt": attempt,
        "rank": rank,
        "kind": spec.kind.value,
        "command": list(spec.command),
        "variables": dict(spec.environment.variables),
        "cwd": spec.environment.working_directory,
        "visible_variable": spec.resources.accelerator.visible_variable,
        "ports": {port.name: port.number for port in spec.ports},
        "loopback": [port.name for port in spec.ports if port.loopback],
        "memory_bytes": spec.resources.memory_bytes,
        "grace_s": spec.grace_s,
        "start_timeout_s": spec.start_timeout_s,
        "max_runtime_s": spec.max_runtime_s,
        "relaunch_within_s": spec.relaunch_within_s,
        "orphan_running_after_s": spec.orphan_running_after_s,
        **place,
    }
