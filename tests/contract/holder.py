"""A process that holds a Workload until it is killed, or says why it can't: ``holder.py SETTINGS ID``."""

from __future__ import annotations

import sys

import anyio
from pydantic import TypeAdapter

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import ConflictError
from jupyter_gpu.schema import LocalSettings, PlaceSettings


def _backend(text: str) -> Backend:
    settings = TypeAdapter(PlaceSettings).validate_json(text)
    if isinstance(settings, LocalSettings):
        from jupyter_gpu.backends.local import LocalBackend

        return LocalBackend("local", settings)
    from jupyter_gpu.backends.kubernetes import KubernetesBackend

    return KubernetesBackend("kubernetes", settings)


async def _hold(settings: str, id: str) -> None:
    async with _backend(settings) as backend:
        try:
            async with backend.hold(id):
                print("held", flush=True)
                await anyio.sleep_forever()
        except ConflictError as error:
            print(error, flush=True)


if __name__ == "__main__":
    anyio.run(_hold, *sys.argv[1:])
