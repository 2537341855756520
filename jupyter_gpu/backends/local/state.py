"""The state folder: where everything of a local place is kept, and whether a folder is fit for it."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.names import object_name
from jupyter_gpu.schema import LocalSettings

_CURE = "set state_folder to a folder of yours on a local disk"
_STORE = "store.db"
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "fhgfs", "glusterfs", "pvfs2",
    "orangefs", "ocfs2", "gfs2", "wekafs", "panfs", "9p", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
    "fuse.ceph-fuse", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.juicefs", "fuse.mfs", "fuse.davfs2", "fuse.goofys",
    "fuse.blobfuse", "fuse.blobfuse2", "fuse.mount-s3", "fuse.cvmfs2",
})  # fmt: skip


@dataclass(frozen=True)
class AttemptFolder:
    """What one try at a Workload leaves on disk; `jupyter_gpu.replica` says what each file holds."""

    path: Path

    @functools.cached_property
    def lock(self) -> Path:
        """Held by the runner for life."""
        return self.path / "lock"

    @property
    def replica(self) -> Path:
        """The runner's specification; without ``devices`` until it is admitted."""
        return self.path / "replica.json"

    @property
    def secrets(self) -> Path:
        """All secrets, as one JSON object."""
        return self.path / "secrets.json"

    @functools.cached_property
    def state(self) -> Path:
        """There once the program was started."""
        return self.path / "state.json"

    @property
    def log(self) -> Path:
        """What the program said."""
        return self.path / "log"

    @property
    def stop(self) -> Path:
        """Why it must end."""
        return self.path / "stop.json"

    @property
    def end(self) -> Path:
        """The end report."""
        return self.path / "end.json"

    @property
    def usage(self) -> Path:
        """What its runner measured."""
        return self.path / "usage.json"

    @property
    def runner_log(self) -> Path:
        """What the runner itself said, which is nothing unless it is broken."""
        return self.path / "runner.log"


@dataclass(frozen=True)
class StateFolder:
    """Where a local place keeps everything."""

    path: Path

    @property
    def store(self) -> Path:
        """The SQLite file."""
        return self.path / _STORE

    @property
    def tend_lock(self) -> Path:
        """Held for each Keeper step."""
        return self.path / "tend.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the Keeper for life."""
        return self.path / "keeper.lock"

    @property
    def keeper_log(self) -> Path:
        """What the Keeper said."""
        return self.path / "keeper.log"

    @property
    def waiting(self) -> Path:
        """There while something is QUEUED or may be again, so that a runner's last act knows whether a Keeper is needed."""
        return self.path / "waiting"

    @property
    def replicas(self) -> Path:
        """Holds the zips that runners are started from."""
        return self.path / "replica"

    @property
    def workloads(self) -> Path:
        """Holds a folder per Workload."""
        return self.path / "workloads"

    @property
    def trash(self) -> Path:
        """Holds what is being removed."""
        return self.path / "trash"

    def workload(self, id: str) -> Path:
        """Return the folder of one Workload."""
        return self.workloads / object_name(id)

    def hold_lock(self, id: str) -> Path:
        """Return what a Workload's client locks."""
        return Path(f"{self.path}/workloads/{object_name(id)}/hold.lock")

    def attempt(self, id: str, attempt: int) -> AttemptFolder:
        """Return the folder of one try."""
        return AttemptFolder(self.workload(id) / str(attempt))


def state_folder(settings: LocalSettings, *, make: bool = True) -> StateFolder:
    """Return the state folder that settings name, once it is found fit.

    Args:
        settings: of the place.
        make: whether to make what is missing; else a missing folder is only looked at from its nearest parent.

    Raises:
        InvalidRequestError: it is on a network file system, somebody else's, not writable, or no folder.
    """
    path = Path(settings.state_folder).expanduser().absolute() if settings.state_folder else _default()
    try:
        path = path.resolve()
        if (kind := _file_system(path)) in _NETWORK:
            raise InvalidRequestError(
                f"the state folder {path} is on a network file system ({kind}), whose locks can't be trusted: {_CURE}"
            )
        if make:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(path)
        if make:
            for folder in (path / "workloads", path / "replica"):
                folder.mkdir(mode=0o700, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        what = getattr(error, "strerror", None) or str(error)
        raise InvalidRequestError(f"the state folder {path} can't be used ({what}): {_CURE}") from error
    return StateFolder(path)


def write_whole(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file (0600) as a whole: a reader sees the old or the new one."""
    write_bytes(path, json.dumps(value).encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file (0600) as a whole."""
    new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)  # it may hold secrets
        raise


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no such file or it holds anything else."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _default() -> Path:
    from jupyter_core.paths import jupyter_data_dir  # 10 ms that a set state_folder saves

    return Path(jupyter_data_dir()).absolute() / "gpu" / machine_id()


def machine_id() -> str:
    """Return what names this machine among those that share a home folder."""
    for source in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            if re.fullmatch(r"[0-9a-f]{32}", text := Path(source).read_text().strip()):
                return text
        except OSError:
            continue
    return object_name(platform.node() or "machine")


def _check(path: Path) -> None:
    here = path
    while not here.exists() and here != here.parent:
        here = here.parent
    if not here.is_dir():
        raise NotADirectoryError(0, f"{here} is a file")
    if not os.access(here, os.W_OK | os.X_OK):
        raise PermissionError(0, f"{here} is not writable")
    if here != path:
        return
    facts = path.stat()
    if facts.st_uid != os.getuid():
        raise PermissionError(0, "it belongs to another account")
    if stat.S_IMODE(facts.st_mode) & 0o077:
        if any(path.iterdir()) and not (path / _STORE).exists():
            raise PermissionError(0, "others may enter it, and it holds something else")
        path.chmod(0o700)


def _file_system(path: Path) -> str:
    """Return the type of the file system that a path is or would be on; empty where the kernel does not tell.

    Source: Linux, Documentation/filesystems/proc.rst, section 3.5 (mountinfo).
    """
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    found, kind = Path(), ""
    for line in lines:
        mount, _, source = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount.split(" ")[4]))
        if len(point.parts) >= len(found.parts) and path.is_relative_to(point):  # of equals the last one covers the others
            found, kind = point, source.split(" ")[0]
    return kind
