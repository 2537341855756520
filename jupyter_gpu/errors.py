"""Every error that jupyter-gpu raises on purpose.

    JupyterGpuError
    ├── InvalidRequestError        what was asked for can't be; nothing was started
    ├── NotFoundError              no such workload, profile, place, port
    ├── ConflictError              somebody else has it, or it runs with other content
    ├── NotAllowedError            this account lacks a right
    ├── QuotaExceededError         waiting can't help: more than may ever be had
    ├── WorkloadFailedError        the workload ended otherwise than hoped; has the Reason
    └── BackendError               the place itself
        ├── BackendUnavailableError    it can't be reached; may be tried again
        ├── BackendTimeoutError        it did not answer in time; may be tried again
        └── UnsupportedError           it has no such ability

Each class has a ``code``: a stable word that clients switch on. A message says what happened, to what, and what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from jupyter_gpu.schema import Reason


class JupyterGpuError(Exception):
    """The root of the tree; its text is meant for the person who asked."""

    code: ClassVar[str] = "error"


class InvalidRequestError(JupyterGpuError):
    """What was asked for can't be: a value out of bounds, an unknown name, a broken setting."""

    code = "invalid_request"


class NotFoundError(JupyterGpuError):
    """There is nothing of that name."""

    code = "not_found"


class ConflictError(JupyterGpuError):
    """Somebody else holds it, or it already runs with other content."""

    code = "conflict"


class NotAllowedError(JupyterGpuError):
    """This account lacks a right; the message names it."""

    code = "not_allowed"


class QuotaExceededError(JupyterGpuError):
    """A place or queue would hold more of a resource than it may ever have, so waiting can't help."""

    code = "quota_exceeded"

    def __init__(self, holder: str, resource: str, *, asked: float, limit: float, advice: str = "") -> None:
        has = f"it has {limit:g}" if limit else "it has none"
        super().__init__(f"{holder} can never give {asked:g} {resource}: {has}" + (f"; {advice}" if advice else ""))
        self.holder, self.resource, self.asked, self.limit = holder, resource, asked, limit


class WorkloadFailedError(JupyterGpuError):
    """A workload ended otherwise than hoped; ``reason`` has the stable code, the sentence and the facts."""

    code = "workload_failed"

    def __init__(self, id: str, reason: Reason) -> None:
        super().__init__(reason.message)
        self.id, self.reason = id, reason


class BackendError(JupyterGpuError):
    """The place itself failed; the message holds its words."""

    code = "backend"


class BackendUnavailableError(BackendError):
    """The place can't be reached; the same request may be tried again."""

    code = "backend_unavailable"


class BackendTimeoutError(BackendError):
    """The place did not answer in time; the same request may be tried again."""

    code = "backend_timeout"


class UnsupportedError(BackendError):
    """This kind of place has no such ability."""

    code = "unsupported"
