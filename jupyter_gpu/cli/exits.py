"""What the command line ends with: one table from error to exit code."""

from __future__ import annotations

from jupyter_gpu.errors import (
    BackendError,
    ConflictError,
    InvalidRequestError,
    JupyterGpuError,
    NotAllowedError,
    NotFoundError,
    QuotaExceededError,
    UnsupportedError,
)

INTERRUPTED = 130
INTERNAL = 70
USAGE = 2

_CODES: dict[type[JupyterGpuError], int] = {
    InvalidRequestError: USAGE,
    QuotaExceededError: USAGE,
    NotFoundError: 3,
    ConflictError: 4,
    NotAllowedError: 5,
    UnsupportedError: 7,  # before BackendError, which it is
    BackendError: 6,
}

EXPLAINED = """\b
Exit codes:
  0    done
  1    what was asked about is not as it should be: a followed workload
       did not succeed, a check found something off
  2    the request itself is wrong: an option, a name, the configuration,
       more devices than there are
  3    there is no such workload, place, profile or kernelspec
  4    something is in the way: somebody else has it, it is there already,
       it has work, or it has ended
  5    this account lacks a right
  6    the place can't be reached, or did not answer in time
  7    this kind of place has no such ability
  70   an error in jupyter-gpu itself
  130  interrupted"""


def exit_code(error: JupyterGpuError) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), 1)
