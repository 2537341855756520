"""A place of virtual time, for tests and dry runs: it obeys the whole contract, but its programs are told, not run."""

from jupyter_gpu.backends.memory.backend import MemoryBackend

__all__ = ["MemoryBackend"]
