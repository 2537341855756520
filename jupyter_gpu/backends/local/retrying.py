"""What follows the end of an attempt: the end of its Workload, or the next attempt, from its old place in line.

Which of them is a rule of `jupyter_gpu.queueing`. There is no pause before a retry: whoever waits for devices waits anyway.
"""

from __future__ import annotations

import shutil
from typing import Any

from jupyter_gpu.backends.local import processes
from jupyter_gpu.backends.local.rows import Row, read
from jupyter_gpu.backends.local.state import StateFolder, read_object, write_whole
from jupyter_gpu.queueing.retrying import PREEMPTED, tries_again
from jupyter_gpu.schema import Reason, WorkloadSpec

_MAX_RUNTIME = "end.max_runtime"


def failures_after(row: Row, reason: Reason) -> int | None:
    """Return how many retries will have been used when it is tried again after this end; None if it is not."""
    wish = row.stop_reason
    if wish is not None and wish.code != PREEMPTED:  # somebody wanted its end, be it that it failed by itself just then
        return None
    if not tries_again(read(WorkloadSpec, row.spec), reason, row.failures):
        return None
    return row.failures + (reason.code != PREEMPTED)


def out_of_time(row: Row, reason: Reason, ran_s: float) -> Reason | None:
    """Return why it has ended although it could be tried again: no time is left of its limit; None if there is some."""
    if row.max_runtime_s is None or ran_s < row.max_runtime_s:
        return None
    if reason.code != PREEMPTED:
        return reason
    words = f"its {row.attempt} attempts ran as long as its limit of {row.max_runtime_s:g} s"
    return Reason(code=_MAX_RUNTIME, message=words, facts={"because": PREEMPTED, **reason.facts})


def prepare(state: StateFolder, row: Row) -> None:
    """Make the folder of the next attempt; its specification and secrets are those of this one.

    Raises:
        FileNotFoundError: the specification is gone.
        OSError: it can't be written.
    """
    old, new = state.attempt(row.id, row.attempt), state.attempt(row.id, row.attempt + 1)
    spec = read_object(old.replica)
    if spec is None:
        raise FileNotFoundError(2, "its specification was removed", str(old.replica))
    shutil.rmtree(new.path, ignore_errors=True)  # of a step that was cut off here
    new.path.mkdir(mode=0o700)
    if (secrets := read_object(old.secrets)) is not None:
        write_whole(new.secrets, secrets)
    write_whole(new.replica, _again(state, row, spec, None if secrets is None else str(new.secrets)))


def give_up(state: StateFolder, row: Row) -> None:
    """Remove what `prepare` made for a next attempt that is not to be, its secrets above all."""
    shutil.rmtree(state.attempt(row.id, row.attempt + 1).path, ignore_errors=True)


def _again(state: StateFolder, row: Row, spec: dict[str, Any], secrets: str | None) -> dict[str, Any]:
    kept = {name: value for name, value in spec.items() if name != "run_folder"}  # what tells that it was started
    variables = {**spec["variables"], **processes.markers(state, row.id, row.attempt + 1)}
    return {**kept, "attempt": row.attempt + 1, "variables": variables, "secrets": secrets}
