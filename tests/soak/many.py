"""A client that submits very many, and says how long that takes: ``python -m tests.soak.many SETTINGS COUNT``."""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import anyio

from jupyter_gpu.connection import make_backend
from jupyter_gpu.schema import Environment, Kind, LocalSettings, Resources, WorkloadSpec
from tests.soak.wishes import TTL_S

_STEPS = 20


def pss_mb(pid: int | str) -> float:
    """Return the memory of a process, what it shares counted by shares.

    Source: Documentation/ABI/testing/procfs-smaps_rollup of Linux.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _a_sleeper(number: int) -> WorkloadSpec:
    queue = ("night", "vision")[number % 2]
    return WorkloadSpec(
        id=f"{queue}-{number}",
        name=f"{queue} {number}",
        kind=Kind.BATCH,
        queue=queue,
        resources=Resources(gpus=1, cpus=0.1, memory_bytes="64MiB"),
        environment=Environment(working_directory="/"),
        command=("/bin/sleep", "600"),
        grace_s=0.5,
        preemptible=False,
        ttl_s=TTL_S,
    )


def _median_ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1000, 1)


async def _main(settings: str, count: str) -> None:
    async with make_backend("local", LocalSettings.model_validate_json(settings)) as backend:
        submits, steps = [], []
        for number in range(int(count)):
            began = time.perf_counter()
            await backend.submit(_a_sleeper(number))
            submits.append(time.perf_counter() - began)
        for _ in range(_STEPS):
            await anyio.sleep(0.1)
            began = time.perf_counter()
            await backend.tend(datetime.now(UTC))
            steps.append(time.perf_counter() - began)
        numbers = {
            "a submit, median (ms)": _median_ms(submits),
            "one of the last 100 (ms)": _median_ms(submits[-100:]),
            "a step, median (ms)": _median_ms(steps),
            "the submitting client (MB)": round(pss_mb("self"), 1),
        }
        print(json.dumps(numbers))


if __name__ == "__main__":
    anyio.run(_main, *sys.argv[1:])
