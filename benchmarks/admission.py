"""The step that looks after a thousand who wait on this machine: an absolute promise, so it is set against one millisecond."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from jupyter_gpu.backends.local import locks, waiting, writing
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.state import StateFolder, state_folder
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.backends.local.tending import Tending
from jupyter_gpu.schema import Kind, LocalSettings, Resources, WorkloadSpec

_WAITING = 1000
_DEVICES = 4
_PRIORITIES = 3


@asynccontextmanager
async def admission_step() -> AsyncIterator[tuple[Callable[[], Awaitable[float]], Callable[[], Awaitable[float]]]]:
    """A whole step with 1,000 waiting, of four sizes and three priorities, in milliseconds of its thread; against 1 ms."""
    with tempfile.TemporaryDirectory(prefix="jg-bench-") as folder:
        settings = LocalSettings(state_folder=Path(folder) / "state", emulated_gpus=_DEVICES)
        state = state_folder(settings)
        store = Store(state.store)
        lock = _fill(store, state)
        tending = Tending(Site("local", settings, state, store, None))
        tending.step(Moment.present())  # why each waits is written down once

        async def step() -> float:
            begun = time.thread_time()
            tending.step(Moment.present())
            return (time.thread_time() - begun) * 1000

        async def one() -> float:
            return 1.0

        yield step, one
        locks.release(lock)
        store.close()


def _fill(store: Store, state: StateFolder) -> int:
    """Let a thousand wait for one who has all devices, and return the lock that tells that its runner lives."""
    moment = Moment.present()
    with store.transaction() as connection:
        writing.insert(connection, _a_spec("holder", gpus=_DEVICES), 1, moment)
        waiting.admit(connection, "holder", json.dumps([f"GPU-emulated-{number}" for number in range(_DEVICES)]), moment)
        for number in range(_WAITING):
            spec = _a_spec(f"w-{number}", gpus=1 + number % _DEVICES, priority=number % _PRIORITIES)
            writing.insert(connection, spec, 1, moment)
    folder = state.attempt("holder", 1)
    folder.path.mkdir(parents=True)
    lock = locks.take(folder.lock)
    assert lock is not None
    return lock


def _a_spec(id: str, *, gpus: int, priority: int = 0) -> WorkloadSpec:
    return WorkloadSpec(
        id=id,
        name=id,
        kind=Kind.BATCH,
        priority=priority,
        resources=Resources(gpus=gpus),
        command=("true",),
        start_timeout_s=86_400,
    )
