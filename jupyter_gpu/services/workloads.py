"""What a person asks about Workloads: which there are, how one stands, what it said, how to end it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import datetime

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import InvalidRequestError, NotFoundError
from jupyter_gpu.schema import Event, LogLine, Phase, Place, Reason, Selector, Stream, Usage, Workload

_PHASE_ORDER = {Phase.RUNNING: 0, Phase.STARTING: 1, Phase.QUEUED: 2}


class Workloads:
    """Look at Workloads and end them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def place(self) -> Place:
        """Return the place as it is now."""
        return await self._backend.describe()

    async def all(self, selector: Selector | None = None, *, ended: bool = False) -> list[Workload]:
        """Return the Workloads: running first, then the queue in its order, then, if wanted, the ended ones, newest first."""
        workloads = [w for w in await self._snapshot(selector) if ended or not w.status.phase.is_final]
        return sorted(workloads, key=_order)

    async def find(self, text: str) -> Workload:
        """Return the one Workload that a text means: its id, the start of its id, or its name.

        Raises:
            NotFoundError: nothing fits.
            InvalidRequestError: more than one fits; the message lists them.
        """
        return self._meant(text, await self._snapshot())

    async def find_all(self, texts: Sequence[str]) -> list[Workload]:
        """Return the one Workload that each text means, in one look at the place; see `find`."""
        everything = await self._snapshot()
        return [self._meant(text, everything) for text in texts]

    def _meant(self, text: str, everything: Sequence[Workload]) -> Workload:
        for fits in (
            [w for w in everything if w.spec.id == text],
            [w for w in everything if len(text) >= 4 and w.spec.id.startswith(text)],
            [w for w in everything if w.spec.name == text and not w.status.phase.is_final],
            [w for w in everything if w.spec.name == text],
        ):
            if len(fits) == 1:
                return fits[0]
            if fits:
                ids = ", ".join(sorted(w.spec.id for w in fits)[:5]) + (", ..." if len(fits) > 5 else "")
                raise InvalidRequestError(f"{text!r} could mean {len(fits)} workloads ({ids}); give the id, or enough of it")
        raise NotFoundError(f"{self._backend.name} has no workload {text!r}; `jupyter gpu list --all` shows those there are")

    async def cancel(self, id: str, *, reason: Reason | None = None) -> None:
        """Ask for the end of a Workload, by its id."""
        await self._backend.cancel(id, reason=reason)

    async def cancel_all(self, workloads: Sequence[Workload]) -> None:
        """Ask for the end of several Workloads, of those that wait first, so that none starts in the place of another."""
        for workload in sorted(workloads, key=lambda one: one.status.phase is not Phase.QUEUED):
            if not workload.status.phase.is_final:
                await self.cancel(workload.spec.id)

    async def set_priority(self, id: str, priority: int) -> None:
        """Give a Workload another priority, by its id; see `Backend.reprioritise`."""
        await self._backend.reprioritise(id, priority)

    async def story(self, id: str) -> tuple[Event, ...]:
        """Return every phase of every attempt of a Workload, with its time and reason, oldest first."""
        return await self._backend.story(id)

    async def usage(self, since: datetime | None = None) -> tuple[Usage, ...]:
        """Return what each attempt used that held something after ``since``, oldest first."""
        return await self._backend.usage(since)

    async def follow(self, id: str) -> AsyncIterator[Workload]:
        """Show a Workload now and at each change, until it is final or gone."""
        async with aclosing(self._backend.watch(Selector(ids=frozenset({id})))) as watch:  # type: ignore[type-var]
            async for changes in watch:
                for workload in changes.workloads:
                    yield workload
                    if workload.status.phase.is_final:
                        return
                if id in changes.removed or (changes.complete and not changes.workloads):
                    return

    async def logs(
        self,
        id: str,
        *,
        replica: int | None = None,
        attempt: int | None = None,
        since: datetime | None = None,
        follow: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Show what a Workload's replicas said; see `Backend.logs`."""
        lines = self._backend.logs(id, replica=replica, attempt=attempt, since=since, follow=follow)
        async with aclosing(lines) as source:  # type: ignore[type-var]
            async for line in source:
                yield line

    async def reports(self, id: str) -> list[LogLine]:
        """Return the reports of a Workload's newest attempt so far; none where its log can't be had."""
        try:
            return [line async for line in self.logs(id) if line.stream is Stream.REPORT]
        except NotFoundError:
            return []

    async def _snapshot(self, selector: Selector | None = None) -> list[Workload]:
        async with aclosing(self._backend.watch(selector or Selector())) as watch:  # type: ignore[type-var]
            async for changes in watch:
                return list(changes.workloads)
        return []


def _order(workload: Workload) -> tuple[int, float, int]:
    status = workload.status
    if status.phase is Phase.QUEUED:
        return (2, status.position or 10**9, status.sequence)
    if status.phase.is_final:
        return (3, -(status.ended or status.created).timestamp(), status.sequence)
    return (_PHASE_ORDER[status.phase], (status.started or status.created).timestamp(), status.sequence)
