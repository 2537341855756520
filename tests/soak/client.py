"""One of many clients: ``python -m tests.soak.client SETTINGS SEED NAME COUNT [KERNELS]``.

It submits ``COUNT`` batch runs (0: it goes on until it is killed; then with kernels among them), and meanwhile cancels, submits
again and changes the priority of what it has submitted. At the end it says what it did, as one JSON object.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from contextlib import aclosing, suppress

import anyio

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.connection import make_backend
from jupyter_gpu.errors import BackendTimeoutError, ConflictError, NotFoundError, UnsupportedError, WorkloadFailedError
from jupyter_gpu.schema import LocalSettings, Selector, WorkloadSpec
from jupyter_gpu.services.kernels import Kernels
from tests.soak.wishes import KEYS, a_batch, a_kernel

READY = "ready"
"""What it says first: from then on it acts."""

_LONGEST_PAUSE_S = 0.4
_LONGEST_RUN_S = 4.0
_KERNEL_S = 20.0
_EXPECTED = (ConflictError, NotFoundError, WorkloadFailedError, UnsupportedError)


class Client:
    """What one client does, by its dice."""

    def __init__(self, backend: Backend, dice: random.Random, name: str) -> None:
        self._backend, self._dice, self._name = backend, dice, name
        self._mine: list[WorkloadSpec] = []
        self.did: Counter[str] = Counter()

    async def submit_some(self, count: int) -> None:
        """Submit so many batch runs, each followed by something else now and then."""
        for number in range(count):
            await self._submit(a_batch(self._dice, f"{self._name}-{number}"))
            if self._dice.random() < 0.4:
                await self._meddle()
            await anyio.sleep(self._dice.random() * _LONGEST_PAUSE_S)

    async def submit_for_ever(self, *, with_ipykernel: bool) -> None:
        """Go on until somebody kills this process."""
        number = 0
        while True:
            number += 1
            chance, label = self._dice.random(), f"{self._name}-{number}"
            if chance < 0.5:
                await self._submit(a_batch(self._dice, label, seconds=self._dice.random() * _LONGEST_RUN_S))
            elif chance < 0.6:
                await self._hold_a_silent_kernel(label)
            elif chance < 0.75 and with_ipykernel:
                await self._use_a_kernel(label)
            elif self._mine:
                await self._meddle()
            await anyio.sleep(self._dice.random() * _LONGEST_PAUSE_S)

    async def _submit(self, spec: WorkloadSpec) -> None:
        await self._backend.submit(spec)
        self._mine.append(spec)
        self.did["submitted"] += 1

    async def _meddle(self) -> None:
        spec, chance = self._dice.choice(self._mine), self._dice.random()
        try:
            if chance < 0.35:
                await self._backend.cancel(spec.id, grace_s=self._dice.choice((None, 0.0, 0.2)))
                self.did["cancelled"] += 1
            elif chance < 0.7:
                await self._backend.reprioritise(spec.id, self._dice.randrange(-2, 4))
                self.did["reprioritised"] += 1
            elif chance < 0.85:
                await self._backend.submit(spec)  # the same again: nothing, or a new attempt
                self.did["submitted again"] += 1
            else:
                await self._look(spec)
        except _EXPECTED as error:
            self.did[type(error).__name__] += 1

    async def _look(self, spec: WorkloadSpec) -> None:
        async with aclosing(self._backend.watch(Selector(queue=spec.queue))) as steps:  # type: ignore[type-var]
            await anext(steps)
        await self._backend.story(spec.id)
        async with aclosing(self._backend.logs(spec.id)) as lines:  # type: ignore[type-var]
            self.did["lines read"] += len([line async for line in lines])
        self.did["looked"] += 1

    async def _hold_a_silent_kernel(self, label: str) -> None:
        spec = a_kernel(self._dice, label, real=False)
        await self._backend.submit(spec, secrets=KEYS)
        self.did["silent kernels"] += 1
        with suppress(*_EXPECTED):
            async with self._backend.hold(spec.id):
                await anyio.sleep(self._dice.random())
            if self._dice.random() < 0.5:
                await self._backend.cancel(spec.id)

    async def _use_a_kernel(self, label: str) -> None:
        """Launch ipykernel, restart it perhaps, and end it or walk away; what becomes of it here is up to the dice of others."""
        spec, kernels = a_kernel(self._dice, label, real=True), Kernels(self._backend)
        try:
            with anyio.move_on_after(_KERNEL_S):
                kernel = await kernels.launch(spec, secrets=KEYS)
                self.did["kernels"] += 1
                if self._dice.random() < 0.5:
                    await kernel.spawn(command=list(spec.command), variables={})
                    self.did["restarts"] += 1
                if self._dice.random() < 0.5:
                    await kernels.end(kernel)
        except (*_EXPECTED, BackendTimeoutError) as error:  # a parent that was killed does not answer
            self.did[type(error).__name__] += 1
        finally:
            with anyio.CancelScope(shield=True):
                await kernels.aclose()


async def _main(settings: str, seed: str, name: str, count: str, kernels: str = "") -> None:
    async with make_backend("local", LocalSettings.model_validate_json(settings)) as backend:
        print(READY, flush=True)
        client = Client(backend, random.Random(f"{seed}-{name}"), name)
        if int(count):
            await client.submit_some(int(count))
        else:
            await client.submit_for_ever(with_ipykernel=bool(kernels))
    print(json.dumps(client.did))


if __name__ == "__main__":
    anyio.run(_main, *sys.argv[1:])
