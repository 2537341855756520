"""Many processes submit at once, to queues that lend to each other; nothing is ever held twice, and all of it ends."""

from __future__ import annotations

import time
from collections import Counter

from tests.soak.outcome import Outcome, judge, read_independently, wait_until_idle
from tests.soak.place import a_place, read_objects

_SUBMITTING_S = 600.0


def crowd(seed: int, *, clients: int = 8, workloads: int = 500) -> Outcome:
    """Let clients submit, cancel, reprioritise; then let the place come to its end by itself.

    Args:
        seed: of all dice.
        clients: processes.
        workloads: of all of them together.
    """
    outcome = Outcome(f"{clients} processes submit {workloads} workloads")
    with a_place() as place:
        began = time.monotonic()
        with read_independently(place, outcome):
            shares = [workloads // clients + (number < workloads % clients) for number in range(clients)]
            started = [
                place.start("client", seed, f"c{number}", share, name=f"client-{number}") for number, share in enumerate(shares)
            ]
            for number, client in enumerate(started):
                code = client.wait(_SUBMITTING_S)
                outcome.expect(code == 0, f"client {number} ended with exit code {code}")
            outcome.numbers["submitted within (s)"] = round(time.monotonic() - began, 1)
            wait_until_idle(place, outcome, within_s=_SUBMITTING_S)
        outcome.numbers["did"] = dict(
            sum((Counter(did) for path in place.folder.glob("*.out") for did in read_objects(path)), Counter())
        )
        found = judge(place, outcome)
        outcome.expect(len(found) == workloads, f"{len(found)} of {workloads} workloads are there")
    return outcome
