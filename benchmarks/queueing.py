"""The pure decision with a thousand who wait: an absolute promise, so it is set against one millisecond."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from jupyter_gpu.queueing import State, decide
from jupyter_gpu.schema import Claim, Holding, QueueSet, Stock

_WAITING = 1000
_HELD = 24
_SIZES = (1, 1, 1, 2, 2, 4, 8)
_QUEUES = ("speech", "text", "vision")
_GPU = "nvidia.com/gpu"
_RULES = {"within_queue": "lower_priority", "reclaim_within_cohort": "any"}


@asynccontextmanager
async def decision() -> AsyncIterator[tuple[Callable[[], Awaitable[float]], Callable[[], Awaitable[float]]]]:
    """A decision on 1,000 waiting of three queues of a cohort, in milliseconds of its thread; against 1 ms."""
    state = _a_state()

    async def decided() -> float:
        begun = time.thread_time()
        found = decide(state)
        assert len(found.reasons) == _WAITING
        return (time.thread_time() - begun) * 1000

    async def one() -> float:
        return 1.0

    yield decided, one


def _a_state() -> State:
    quotas = {_GPU: {"nominal": _HELD // len(_QUEUES)}}
    queues = QueueSet.model_validate(
        {"queues": {name: {"cohort": "lab", "quotas": quotas, "preemption": _RULES} for name in _QUEUES}}
    )
    claims = [
        Claim(
            id=f"w-{number}",
            sequence=_HELD + number,
            queue=_QUEUES[number % 3],
            priority=number % 2,
            each={"cpu": 1000, "memory": 2**32, _GPU: _SIZES[number % len(_SIZES)]},
            device=_GPU,
            since_s=float(number),
        )
        for number in range(_WAITING)
    ]
    holdings = [
        Holding(f"h-{number}", number, _QUEUES[number % 3], 1, {"cpu": 1000, "memory": 2**32, _GPU: 1}, {"A100": 1}, _GPU)
        for number in range(_HELD)
    ]
    return State(claims, holdings, [Stock(_GPU, "A100", _HELD, 0)], queues, now_s=300.0)
