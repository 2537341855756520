"""Runners, Keepers, programs and clients are killed at random, under load; afterwards nothing is held by the dead."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.soak.client import READY
from tests.soak.outcome import Outcome, judge, read_independently, wait_until_idle
from tests.soak.place import SoakPlace, a_place

_KINDS = {"runner": 4, "keeper": 3, "program": 4, "client": 1}
"""What is killed, and how often compared to the others."""
_LONGEST_PAUSE_S = 0.5
_IDLE_WITHIN_S = 180.0


class _Clients:
    """Clients that are replaced when they die."""

    def __init__(self, place: SoakPlace, seed: int, count: int) -> None:
        self._place, self._seed, self._count, self._started = place, seed, count, 0
        self.alive: dict[int, subprocess.Popen[bytes]] = {}
        self._outs: dict[int, Path] = {}

    def fill_up(self) -> list[int]:
        """Start as many as are missing, and return the exit codes of those that ended."""
        ended = [client for client in self.alive.values() if client.poll() is not None]
        for client in ended:
            del self.alive[client.pid]
        while len(self.alive) < self._count:
            name = f"k{self._started}"
            # one in two has real kernels: starting those takes most of the time of two cores
            kernels = ["kernels"] if self._started % 2 == 0 else []
            client = self._place.start("client", self._seed, name, 0, *kernels, name=f"client-{self._started}")
            self.alive[client.pid], self._outs[client.pid] = client, self._place.folder / f"client-{self._started}.out"
            self._started += 1
        return [client.returncode for client in ended]

    def at_work(self) -> list[int]:
        """Return the pids of those that have begun to act."""
        return [pid for pid, out in self._outs.items() if pid in self.alive and READY in out.read_text()]

    def kill(self) -> None:
        """End all of them at once, wherever they are just now."""
        for client in self.alive.values():
            client.kill()
        for client in self.alive.values():
            client.wait()


def deaths(seed: int, *, kills: int = 200, clients: int = 4) -> Outcome:
    """Kill at random, then all clients at once; the rest must come to its end by itself.

    Args:
        seed: of all dice.
        kills: how many processes.
        clients: processes that submit, cancel, hold and use kernels meanwhile.
    """
    outcome, dice = Outcome(f"{kills} times kill -9 under load"), random.Random(seed)
    with a_place() as place:
        crowd = _Clients(place, seed, clients)
        with read_independently(place, outcome):
            try:
                killed = _kill_at_random(place, crowd, dice, kills, outcome)
            finally:
                crowd.kill()
            outcome.numbers["killed"] = dict(killed)
            place.do(("look", None))  # the last Keeper may be among the dead: whoever looks next brings another one
            wait_until_idle(place, outcome, within_s=_IDLE_WITHIN_S)
        judge(place, outcome)
    return outcome


def _kill_at_random(place: SoakPlace, crowd: _Clients, dice: random.Random, kills: int, outcome: Outcome) -> Counter[str]:
    killed: Counter[str] = Counter()
    while killed.total() < kills:
        codes = crowd.fill_up()
        outcome.expect(set(codes) <= {-signal.SIGKILL}, f"clients ended by themselves: {codes}")
        if outcome.failures:
            break
        (kind,) = dice.choices(list(_KINDS), list(_KINDS.values()))
        victims = crowd.at_work() if kind == "client" else [pid for pid, one in place.processes().items() if one == kind]
        if victims:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(sorted(victims)), signal.SIGKILL)
                killed[kind] += 1
        time.sleep(dice.random() * _LONGEST_PAUSE_S)
    return killed
