"""A client that does what it is told and says what came of it: ``python -m tests.soak.acting SETTINGS`` reads actions from stdin.

An action is a JSON array, its name and what it is about; the answer to each is one line, null or ``[class, message]`` of an error
of ours. Any other error ends it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import anyio

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.connection import make_backend
from jupyter_gpu.errors import JupyterGpuError
from jupyter_gpu.schema import LocalSettings, QueueSet, WorkloadSpec
from tests.builders import shown
from tests.soak.wishes import KEYS


async def _apply(backend: Backend, queues: Any) -> None:
    await backend.apply_queues(QueueSet.model_validate(queues))


async def _submit(backend: Backend, spec: Any) -> None:
    workload = WorkloadSpec.model_validate(spec)
    await backend.submit(workload, secrets=KEYS if workload.secrets else None)


async def _cancel(backend: Backend, id: Any) -> None:
    await backend.cancel(id)


async def _cancel_all(backend: Backend, _: Any) -> None:
    for id, workload in sorted((await shown(backend)).items(), key=lambda one: -one[1].status.sequence):
        if not workload.status.phase.is_final:
            await backend.cancel(id)


async def _look(backend: Backend, _: Any) -> None:
    await backend.describe()


async def _list(backend: Backend, _: Any) -> None:
    async with aclosing(backend.watch()) as steps:  # type: ignore[type-var]
        await anext(steps)


async def _tend(backend: Backend, _: Any) -> None:
    await backend.tend(datetime.now(UTC))


_ACTIONS: dict[str, Callable[[Backend, Any], Awaitable[None]]] = {
    "apply": _apply,
    "submit": _submit,
    "cancel": _cancel,
    "cancel all": _cancel_all,
    "look": _look,
    "list": _list,
    "tend": _tend,
}


async def _main(settings: str) -> None:
    async with make_backend("local", LocalSettings.model_validate_json(settings)) as backend:
        for name, about in json.load(sys.stdin):
            try:
                await _ACTIONS[name](backend, about)
                print("null", flush=True)
            except JupyterGpuError as error:
                print(json.dumps([type(error).__name__, str(error)]), flush=True)


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1])
