"""A client whose wall clock is set back by an hour amid its work: ``python -m tests.soak.shifting SETTINGS SEED``.

Only this process sees the other time: its runners and the Keeper have the right one. The clock that counts from the start of the
machine goes on, as it does in reality.
"""

from __future__ import annotations

import datetime as real
import json
import random
import sys
import time
from contextlib import aclosing

import anyio

import jupyter_gpu.backends.local.clock
from jupyter_gpu.backends.base import Backend
from jupyter_gpu.connection import make_backend
from jupyter_gpu.schema import Changes, LocalSettings, WorkloadSpec
from tests.builders import shown
from tests.soak.disk import a_run

_BACK_S = 3600.0
_ENDS_WITHIN_S = 60.0


def _set_back() -> None:
    class Earlier(real.datetime):
        @classmethod
        def now(cls, tz: real.tzinfo | None = None) -> real.datetime:
            return real.datetime.now(tz) - real.timedelta(seconds=_BACK_S)

    right = time.time
    time.time = lambda: right() - _BACK_S  # type: ignore[assignment]
    for module in [module for name, module in sys.modules.items() if name.startswith("jupyter_gpu")]:
        if getattr(module, "datetime", None) is real.datetime:
            module.datetime = Earlier  # type: ignore[attr-defined]


def _wishes(dice: random.Random, when: str) -> list[WorkloadSpec]:
    short = [a_run(f"vision-{when}{number}", seconds=round(dice.random(), 2)) for number in range(6)]
    late = a_run(f"night-late-{when}", seconds=600, max_runtime_s=1.5)
    two = short[0].resources.model_copy(update={"gpus": 2})
    ahead = a_run(f"speech-{when}", seconds=4, resources=two)
    kept = a_run(f"speech-kept-{when}", seconds=1, resources=two, orphan_after_s=1.0, priority=-5)  # it never gets its turn
    return [*short, late, ahead, kept]


async def _main(settings: str, seed: str) -> None:
    dice = random.Random(seed)
    async with make_backend("local", LocalSettings.model_validate_json(settings)) as backend:
        for spec in _wishes(dice, "before"):
            await backend.submit(spec)
        _set_back()
        for spec in _wishes(dice, "after"):
            await backend.submit(spec)
        with anyio.fail_after(_ENDS_WITHIN_S):
            await _all_ended(backend)
        await backend.tend(jupyter_gpu.backends.local.clock.datetime.now(real.UTC))
        workloads = (await shown(backend)).values()
        for workload in workloads:
            story = [event.phase for event in await backend.story(workload.spec.id)]
            assert story[0] == "queued" and story[-1].is_final, (workload.spec.id, story)
        sequences = [workload.status.sequence for workload in sorted(workloads, key=lambda one: "after" in one.spec.id)]
        assert max(sequences[: len(sequences) // 2]) < min(sequences[len(sequences) // 2 :])
    print(json.dumps({"workloads over the change": len(sequences)}))


async def _all_ended(backend: Backend) -> None:
    known: dict[str, bool] = {}
    async with aclosing(backend.watch()) as steps:  # type: ignore[type-var]
        changes: Changes
        async for changes in steps:
            known |= {workload.spec.id: workload.status.phase.is_final for workload in changes.workloads}
            if all(known.values()):
                return


if __name__ == "__main__":
    anyio.run(_main, *sys.argv[1:])
