"""The wall clock is set back, the machine restarts, or only seems to: what was asked for comes to its end all the same."""

from __future__ import annotations

import random
from typing import Any

from jupyter_gpu.schema import Phase, WorkloadSpec
from tests.soak.disk import a_run
from tests.soak.outcome import Outcome, judge, read_independently, wait_until, wait_until_idle
from tests.soak.place import SoakPlace, a_place, read_objects
from tests.soak.wishes import a_kernel

_OTHER_BOOT = "11111111-2222-4333-8444-555555555555"
_IDLE_WITHIN_S = 90.0


def set_back(seed: int) -> Outcome:
    """Set a client's clock back by an hour amid its work, with runners and a Keeper whose clocks are right."""
    outcome = Outcome("clock set back an hour")
    with a_place() as place, read_independently(place, outcome):
        code = place.start("shifting", seed, name="shifting").wait(180)
        outcome.expect(
            code == 0, f"the client ended with exit code {code}: {(place.folder / 'shifting.out').read_text()[-1200:]}"
        )
        outcome.numbers |= next(read_objects(place.folder / "shifting.out"), {})
        wait_until_idle(place, outcome, within_s=_IDLE_WITHIN_S)
        workloads = judge(place, outcome)
        for id, one in workloads.items():
            expected = {"late": "end.max_runtime", "kept": "end.orphaned"}.get(id.split("-")[1], "end.completed")
            ended_for = one.status.reason and one.status.reason.code
            outcome.expect(ended_for == expected, f"{id} ended for {ended_for}, not {expected}")
    return outcome


def reboot(seed: int) -> Outcome:
    """End everything at once and name another boot; what may be tried again is, what waited starts, a kernel has ended."""
    outcome = Outcome("reboot")
    with a_place() as place:
        mark = place.folder / "was-here"
        again = _a_run_for_ever("vision-again", f"test -e {mark} || {{ touch {mark}; sleep 600; }}", retries=1)
        kernel = a_kernel(random.Random(seed), "kernel", real=False)
        running = [again, kernel, _a_run_for_ever("vision-once", "sleep 600"), _a_run_for_ever("night-once", "sleep 600")]
        waiting = [a_run(f"vision-waiting-{number}", seconds=0.1) for number in range(3)]
        place.do(*(("submit", spec.model_dump(mode="json")) for spec in (*running, *waiting)))
        with outcome.noting("before"):
            wait_until(lambda: mark.exists() and _programs(place) >= place.devices, "four run", within_s=60)
        place.kill_all()
        place.rows(f"UPDATE workloads SET boot_id = '{_OTHER_BOOT}', admitted_boot_s = 10, queued_boot_s = 5")
        with read_independently(place, outcome):
            place.do(("look", None))
            wait_until_idle(place, outcome, within_s=_IDLE_WITHIN_S)
        workloads = judge(place, outcome)
        ends = {id: one.status.reason and one.status.reason.code for id, one in workloads.items()}
        lost = {id for id, code in ends.items() if code == "end.reboot"}
        outcome.expect(lost == {"vision-once", "night-once", kernel.id}, f"not those were ended by the restart: {ends}")
        outcome.expect(workloads["vision-again"].status.attempt == 2, "what may be tried again was not")
        rest = {id: one.status.phase for id, one in workloads.items() if id not in lost}
        outcome.expect(set(rest.values()) == {Phase.SUCCEEDED}, f"the others have not succeeded: {rest}")
    return outcome


def no_reboot(seed: int) -> Outcome:
    """Name another boot while runners live: only their locks tell of their death."""
    outcome = Outcome("another boot's name while runners live")
    with a_place() as place, read_independently(place, outcome):
        go = place.folder / "go"
        runs = [_a_run_for_ever(f"vision-{number}", f"until test -e {go}; do sleep 0.1; done") for number in range(4)]
        place.do(*(("submit", spec.model_dump(mode="json")) for spec in runs))
        with outcome.noting("before"):
            wait_until(lambda: _programs(place) >= place.devices, "four run", within_s=30)
        _name_another_boot(place)
        place.do(("look", None), ("tend", None))
        place.do(("look", None))
        go.touch()
        wait_until_idle(place, outcome, within_s=_IDLE_WITHIN_S)
        for id, one in judge(place, outcome).items():
            is_well = (one.status.phase, one.status.attempt) == (Phase.SUCCEEDED, 1)
            outcome.expect(is_well, f"{id} is {one.status.phase}, attempt {one.status.attempt}: {one.status.reason}")
    return outcome


def _a_run_for_ever(id: str, script: str, **changes: Any) -> WorkloadSpec:
    return a_run(id, seconds=0, command=("/bin/sh", "-c", script), preemptible=False, **changes)


def _programs(place: SoakPlace) -> int:
    return list(place.processes().values()).count("program")


def _name_another_boot(place: SoakPlace) -> None:
    place.kill_keepers()
    place.rows(f"UPDATE workloads SET boot_id = '{_OTHER_BOOT}'")
