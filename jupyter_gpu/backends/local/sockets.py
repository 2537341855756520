"""Where Unix sockets go: a short private folder, for their paths end at 107 bytes and whoever may connect may command."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from jupyter_gpu.errors import InvalidRequestError

_LONGEST = 90  # bytes; Jupyter and ZeroMQ append to what they are given
_NAME = "/0123456789abcdef/k-65535"
_TEMPORARY = Path("/tmp")  # checked below; tempfile's choice is too long on macOS


def socket_folder(state: Path, id: str, attempt: int) -> Path:
    """Return the folder for the sockets of one attempt; its parent is there and private, it itself is not made.

    Raises:
        InvalidRequestError: no private folder can be had.
    """
    return _root() / socket_name(state, id, attempt)


def socket_name(state: Path, id: str, attempt: int) -> str:
    """Return the name of that folder, which the same attempt of the same place always has."""
    return hashlib.sha256(f"{state}\0{id}\0{attempt}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _root() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if Path(runtime).is_absolute() and _is_private(Path(runtime)):
        root = Path(runtime) / "jupyter-gpu"
        if len(os.fsencode(root)) + len(_NAME) <= _LONGEST and _made(root):
            return root
    root = _TEMPORARY / f"jupyter-gpu-{os.getuid()}"
    if not _made(root):
        raise InvalidRequestError(
            f"{root} is no private folder of this account (a link, a file or somebody else's), "
            "so no kernel's socket may go there: remove it, or set XDG_RUNTIME_DIR to a private folder"
        )
    return root


def _made(path: Path) -> bool:
    """Make a folder if need be, and return whether it is a real one that only this account may enter."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError:
        return False
    if not _is_own_folder(path):
        return False
    if not _is_private(path):
        path.chmod(0o700)
    return True


def _is_private(path: Path) -> bool:
    return _is_own_folder(path) and not stat.S_IMODE(path.lstat().st_mode) & 0o077


def _is_own_folder(path: Path) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
