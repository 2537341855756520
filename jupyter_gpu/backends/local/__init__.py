"""A place on this machine: processes of this account, queued in one SQLite file. No server, no root."""

from jupyter_gpu.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
