"""A thousand wait: what all our processes together take of the memory, and that nothing is left when they are gone."""

from __future__ import annotations

import time
from collections import Counter

from tests.soak.many import pss_mb
from tests.soak.outcome import Outcome, judge, wait_until, wait_until_idle
from tests.soak.place import SoakPlace, a_place, read_objects

_LIMIT_MB = 100


def waiters(_seed: int, *, workloads: int = 1000) -> Outcome:
    """Let so many wait (but for those that hold the devices), weigh what is there, and cancel all."""
    outcome = Outcome(f"{workloads} workloads wait")
    with a_place() as place:
        code = place.start("many", workloads, name="many").wait(300)
        outcome.expect(code == 0, f"the client that submits ended with exit code {code}")
        outcome.numbers |= next(read_objects(place.folder / "many.out"), {})
        with outcome.noting("settling"):  # the last runners have started, and the Keeper has looked at them
            wait_until(lambda: len(_ours(place)) > place.devices, "a Keeper and a runner per device", within_s=20)
            time.sleep(1)
        waiting = place.rows("SELECT count(*) FROM workloads WHERE phase = 'queued'")[0][0]
        outcome.numbers["waiting"] = waiting
        outcome.expect(waiting == workloads - place.devices, f"{waiting} of {workloads} wait, for {place.devices} devices")
        _weigh(place, outcome)
        began = time.monotonic()
        with outcome.noting("cancelling"):
            place.do(("cancel all", None), timeout_s=300)
        outcome.numbers["cancelled within (s)"] = round(time.monotonic() - began, 1)
        wait_until_idle(place, outcome, within_s=60)
        judge(place, outcome)
    return outcome


def _weigh(place: SoakPlace, outcome: Outcome) -> None:
    """Take the memory of all our processes: Keeper and runners; the client that submitted is gone, as in real life."""
    weights = [(kind, pss_mb(pid)) for pid, kind in _ours(place).items()]
    for kind, count in sorted(Counter(kind for kind, _ in weights).items()):
        outcome.numbers[f"{count} of kind {kind} (MB)"] = round(sum(mb for other, mb in weights if other == kind), 1)
    total = sum(mb for _, mb in weights)
    outcome.numbers["all together (MB)"] = round(total, 1)
    outcome.expect(total < _LIMIT_MB, f"our processes take {total:.1f} MB, and {_LIMIT_MB} are promised")


def _ours(place: SoakPlace) -> dict[int, str]:
    return {pid: kind for pid, kind in place.processes().items() if kind != "program"}
