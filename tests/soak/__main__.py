"""``python -m tests.soak [--seed N] [--rounds N] [--only NAME]``: all scenarios, a table of numbers, and 1 if anything failed."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tests.soak import clocks, disk
from tests.soak.crowd import crowd
from tests.soak.deaths import deaths
from tests.soak.outcome import Outcome
from tests.soak.waiters import waiters

SCENARIOS: dict[str, Callable[[int], Outcome]] = {
    "crowd": crowd,
    "deaths": deaths,
    "full": disk.full,
    "read-only": disk.read_only,
    "damaged": disk.damaged,
    "set-back": clocks.set_back,
    "reboot": clocks.reboot,
    "no-reboot": clocks.no_reboot,
    "waiters": waiters,
}

_TERMINATED = 128 + signal.SIGTERM


def main() -> int:
    """Run what was asked for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Long random tests of a local place.")
    parser.add_argument("--seed", type=int, help="of all dice; another one each time when absent")
    parser.add_argument("--rounds", type=int, default=1, help="how often all scenarios run, with seed, seed + 1...")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="this scenario; may be given more than once")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that what runs is ended, and what is mounted unmounted
    seed = random.SystemRandom().randrange(1_000_000) if asked.seed is None else asked.seed
    outcomes: list[Outcome] = []
    console = Console(width=130)
    for round in range(asked.rounds):
        for name in asked.only or SCENARIOS:
            console.print(f"{name}, seed {seed + round}", highlight=False)
            outcome = _run(name, seed + round)
            outcomes.append(outcome)
            console.print(_table(outcome))
    failed = sum(bool(outcome.failures) for outcome in outcomes)
    console.print(f"seed {seed}: {failed} of {len(outcomes)} scenarios failed", highlight=False)
    return 1 if failed else 0


def _run(name: str, seed: int) -> Outcome:
    began = time.monotonic()
    try:
        outcome = SCENARIOS[name](seed)
    except Exception as error:  # noqa: BLE001 - the others are still to come, and the table tells
        outcome = Outcome(name, failures=[f"{type(error).__name__}: {error}"])
    outcome.numbers["took (s)"] = round(time.monotonic() - began, 1)
    return outcome


def _table(outcome: Outcome) -> Table:
    table = Table(title=outcome.title, title_justify="left", show_header=False)
    for name, value in outcome.numbers.items():
        text = ", ".join(f"{key}: {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, text)
    for failure in outcome.failures:
        table.add_row("[red]FAILED[/red]", failure.replace("[", r"\["))
    return table


if __name__ == "__main__":
    sys.exit(main())
