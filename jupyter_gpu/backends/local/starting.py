"""Start an admitted attempt: choose its ports and folders, and hand it to a runner."""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jupyter_gpu.backends import sending
from jupyter_gpu.backends.local import keeping, processes, sockets
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.state import AttemptFolder, StateFolder, read_object, write_bytes, write_whole
from jupyter_gpu.schema import Kind


def start(state: StateFolder, row: Row, keeper: Sequence[str] | None) -> None:
    """Start the runner of an attempt; its lock is held from before the process is there.

    Args:
        state: of the place.
        row: the attempt, STARTING, with its devices.
        keeper: what a runner's last act starts if something waits.

    Raises:
        OSError: it can't be started; the text says why.
        InvalidRequestError: there is no private folder for its sockets.
    """
    folder = state.attempt(row.id, row.attempt)
    spec = read_object(folder.replica)
    if spec is None:
        raise FileNotFoundError(2, "its specification was removed", str(folder.replica))
    run_folder = sockets.socket_folder(state.path, row.id, row.attempt)
    shutil.rmtree(run_folder, ignore_errors=True)
    spec |= {
        "devices": row.device_ids,
        "ports": _ports(row, spec["ports"], run_folder),
        "run_folder": str(run_folder),
        "folder": str(folder.path),
        "zmq_path": _zmq_path(),
        "max_runtime_s": row.left_s,
        "max_runtime_in_all_s": row.max_runtime_s,
        "after": keeper,
        "after_if": str(state.waiting),
        "after_unless_locked": str(state.keeper_lock),
        "after_variables": keeping.variables(),
    }
    write_whole(folder.replica, spec)
    lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for those who just look whether it is free
        processes.start_runner(_archive(state), folder, processes.markers(state, row.id, row.attempt), lock)
    finally:
        os.close(lock)  # the runner has its own copy, which keeps the lock


def clear(state: StateFolder, row: Row) -> None:
    """Remove what an attempt needs only while it runs: sockets and secrets."""
    folder = state.attempt(row.id, row.attempt)
    folder.secrets.unlink(missing_ok=True)
    # this is the next attempt at what was tried again, and the step that made it may have been cut off before it came here
    state.attempt(row.id, row.attempt - 1).secrets.unlink(missing_ok=True)
    clear_sockets(state, folder.replica)


def clear_lost_secrets(state: StateFolder, id: str, newest: int, *, lives: bool) -> None:
    """Remove the secrets of a Workload's attempts that are over or never came to be; who was to do that was killed.

    Args:
        state: of the place.
        id: the Workload's.
        newest: its newest attempt.
        lives: whether that has not ended.
    """
    for attempt in (newest - 1, newest, newest + 1):
        if not (lives and attempt == newest):
            secrets = state.attempt(id, attempt).secrets
            for path in secrets.parent.glob(f"{secrets.name}*"):  # also half a one that was just being written
                path.unlink(missing_ok=True)


def clear_sockets(state: StateFolder, specification: Path) -> None:
    """Remove the folder of an attempt's sockets, which its specification names, if it is one of this place."""
    spec = read_object(specification) or {}
    run_folder = Path(str(spec.get("run_folder", "")))
    if run_folder.name == sockets.socket_name(state.path, str(spec.get("id")), spec.get("attempt", 0)):
        shutil.rmtree(run_folder, ignore_errors=True)


def ports_of(folder: AttemptFolder) -> Mapping[str, int | str] | None:
    """Return the ports of an attempt, numbers or paths of sockets; None until it was started."""
    spec = read_object(folder.replica)
    ports: Mapping[str, int | str] | None = spec["ports"] if spec and "run_folder" in spec else None
    return ports


def _ports(row: Row, ports: Mapping[str, Any], run_folder: Path) -> dict[str, int | str]:
    if row.kind == Kind.KERNEL:  # a second start finds the paths of the first
        return {name: str(run_folder / ("k-" + str(port).rsplit("-", 1)[-1])) for name, port in ports.items()}
    with ExitStack() as stack:  # all stay bound until all are chosen
        chosen: dict[str, int | str] = {}
        for name in ports:
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            chosen[name] = probe.getsockname()[1]
    return chosen


@functools.cache
def _zmq_path() -> list[str]:
    """Return where pyzmq is, without loading it; a runner starts without site-packages."""
    found = importlib.util.find_spec("zmq")
    return [str(Path(found.origin).parents[1])] if found and found.origin else []


def _archive(state: StateFolder) -> Path:
    name, content = sending.replica_zip(compiled=True)
    path = state.replicas / name
    if not path.exists():
        write_bytes(path, content)
    return path
