"""The queues of a place of virtual time: what somebody wants to set, checked against what is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jupyter_gpu.backends.memory.runs import Run
from jupyter_gpu.errors import ConflictError, InvalidRequestError
from jupyter_gpu.schema import CPU, MEMORY, QueueSet, unknown_resources


def checked(queues: QueueSet, capacity: Mapping[str, int], runs: Iterable[Run]) -> QueueSet:
    """Return the queues that a place goes by when these are set; with none at all it is one with everything.

    Raises:
        InvalidRequestError: a quota of a resource that the place does not have.
        ConflictError: a queue that would be gone has work.
    """
    if unknown := unknown_resources(queues, capacity):
        has = ", ".join(sorted({CPU, MEMORY, *capacity}))
        raise InvalidRequestError(f"{unknown[0][0]!r} has a quota of {unknown[0][1]!r}, which is not there; there is {has}")
    if not queues.queues:
        queues = QueueSet.default(capacity).model_copy(update={"starve_after_s": queues.starve_after_s})
    for run in runs:
        if not run.ended and queues.queue(run.spec.queue) is None:
            raise ConflictError(f"the queue {run.spec.queue!r} has work, like {run.spec.id!r}; let it end, or keep the queue")
    return queues
