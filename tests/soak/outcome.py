"""What a scenario found, and what must be true when it is over."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from jupyter_gpu.backends.local import LocalBackend
from jupyter_gpu.schema import Workload
from tests.builders import shown
from tests.soak.place import DEVICE, LENDS, MOST, OWN, SoakPlace

_READER = Path(__file__).with_name("reader.py")
_TRIED_AGAIN = (
    "SELECT count(*) FILTER (WHERE json_extract(reason, '$.code') = 'end.preempted'), "
    "count(*) FILTER (WHERE json_extract(reason, '$.code') NOT IN ('end.preempted', 'end.completed', 'end.cancelled')) "
    "FROM attempts"
)
_KERNELS = "SELECT count(*), count(*) FILTER (WHERE spec LIKE '%ipykernel%') FROM workloads WHERE kind = 'kernel'"
_NEVER_SAID = ("database is locked", "Traceback", "is damaged", "malformed")


@dataclass
class Outcome:
    """Numbers for the table, and whatever is wrong."""

    title: str
    numbers: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, condition: object, failure: str) -> None:
        """Note a failure unless the condition holds."""
        if not condition:
            self.failures.append(failure)

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Turn an assertion that fails, or an error of any kind, into a failure of this name."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the other scenarios are still to come, and the table names it
            self.failures.append(f"{what}: {type(error).__name__}: {error}")


@contextmanager
def read_independently(place: SoakPlace, outcome: Outcome) -> Iterator[None]:
    """Have the independent reader look at a place, and take what it found."""
    rules = json.dumps({"most": MOST, "lends": LENDS, "own": OWN})
    command = [sys.executable, "-S", "-E", str(_READER), str(place.state), rules]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        try:
            yield
        finally:
            told, _ = reader.communicate()
    found = json.loads(told)
    outcome.failures += [f"the reader saw: {words}" for words in found.pop("wrong")]
    outcome.numbers |= found
    outcome.expect(found["attempts seen holding"], "the reader saw nobody hold a device")


def wait_until(condition: Callable[[], object], what: str, *, within_s: float) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it did not come true.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(0.05)


def wait_until_idle(place: SoakPlace, outcome: Outcome, *, within_s: float) -> None:
    """Wait until no process of a place is left, with nobody looking at it."""
    started = time.monotonic()
    with outcome.noting("the place did not become idle by itself"):
        wait_until(lambda: not place.processes(), "all processes end", within_s=within_s)
    outcome.numbers["idle after (s)"] = round(time.monotonic() - started, 1)
    if left := place.processes():
        stand = place.rows("SELECT id, phase, attempt, reason FROM workloads WHERE ended IS NULL")
        outcome.failures.append(f"left: {Counter(left.values())}; not ended: {stand[:10]}")


def judge(place: SoakPlace, outcome: Outcome) -> dict[str, Workload]:
    """Check what must be true of a place where nothing runs any more, and return its Workloads."""
    waiting = place.rows("SELECT id FROM workloads WHERE phase = 'queued'")
    outcome.expect(not waiting, f"{len(waiting)} still wait, and nobody is there for them: {waiting[:5]}")
    workloads, free = anyio.run(_look, place)
    phases = Counter(str(workload.status.phase) for workload in workloads.values())
    outcome.numbers |= {"workloads": len(workloads), "ended as": dict(sorted(phases.items()))}
    outcome.numbers["attempts"] = sum(workload.status.attempt for workload in workloads.values())
    outcome.numbers["kernels, and of them ipykernel"] = place.rows(_KERNELS)[0]
    outcome.numbers["preemptions"], outcome.numbers["retries"] = place.rows(_TRIED_AGAIN)[0]
    reasons = Counter(workload.status.reason.code for workload in workloads.values() if workload.status.reason)
    outcome.numbers["reasons"] = dict(sorted(reasons.items()))
    unended = {id: str(one.status.phase) for id, one in workloads.items() if not one.status.phase.is_final}
    outcome.expect(not unended, f"these have not ended: {unended}")
    unexplained = [id for id, one in workloads.items() if one.status.reason is None]
    outcome.expect(not unexplained, f"these have no Reason: {unexplained}")
    outcome.expect(free == {DEVICE: place.devices}, f"not all devices are free: {free}")
    outcome.expect(not place.processes(), f"processes are left: {place.processes()}")
    outcome.failures += [f"left in the place: {path}" for path in _leftovers(place)]
    outcome.failures += list(_said(place))
    health = place.rows("PRAGMA integrity_check")
    outcome.expect(health == [["ok"]], f"the store is not whole: {health}")
    return workloads


async def _look(place: SoakPlace) -> tuple[dict[str, Workload], dict[str, int]]:
    async with LocalBackend("local", place.settings) as backend:
        free = (await backend.describe()).free  # this is a step, too
        return await shown(backend), free


def _leftovers(place: SoakPlace) -> list[str]:
    """Return what should be gone; half a file in an attempt's folder, of a writer that was killed, goes with that folder."""
    found = [*place.state.glob("*.new"), *place.state.glob("replica/*.new"), *place.runtime.rglob("*/*")]
    found += place.state.glob("trash/*")
    found += place.state.rglob("secrets.json")
    return sorted(str(path.relative_to(place.folder)) for path in found)


def _said(place: SoakPlace) -> Iterator[str]:
    for path in [*place.folder.glob("*.out"), *place.state.rglob("*.log")]:
        text = path.read_text(errors="replace")
        for words in _NEVER_SAID:
            if words in text:
                where = max(text.find(words) - 200, 0)
                yield f"{path.relative_to(place.folder)} says {words!r}: {text[where : where + 1500]}"
