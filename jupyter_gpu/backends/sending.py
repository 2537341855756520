"""What a backend sends along with a program: `jupyter_gpu.replica` as a zip, and its specification."""

from __future__ import annotations

import functools
import hashlib
import importlib._bootstrap_external as bootstrap  # type: ignore[import-not-found]
import importlib.util
import io
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
        for name, source in list(files.items()):
            code = compile(source, name, "exec", dont_inherit=True)
            hash_ = importlib.util.source_hash(source)
            files[name + "c"] = bytes(bootstrap._code_to_hash_pyc(code, hash_, False))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), files[name])
    content = buffer.getvalue()
    return f"replica-{hashlib.sha256(content).hexdigest()[:16]}.zip", content


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
        "grace_s": spec.grace_s,
        "max_runtime_s": spec.max_runtime_s,
        "relaunch_within_s": spec.relaunch_within_s,
        "orphan_running_after_s": spec.orphan_running_after_s,
        **place,
    }
