"""The local place as the contract wants it: a thin asynchronous skin over blocking code that runs in threads."""
# ruff: noqa: D102 - the contract's methods are documented in base.py

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync

from jupyter_gpu.backends.base import Address, Backend, Document, TcpAddress, UnixAddress
from jupyter_gpu.backends.local import (
    accounting,
    describing,
    holding,
    keeping,
    locks,
    ordering,
    rows,
    settling,
    sharing,
    starting,
    stories,
    submitting,
)
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.devices import account
from jupyter_gpu.backends.local.logs import LogReader
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.state import read_object, state_folder
from jupyter_gpu.backends.local.store import Store, foreign_errors
from jupyter_gpu.backends.local.tending import BUSY_S, Tending
from jupyter_gpu.backends.local.watching import Watching
from jupyter_gpu.errors import BackendError, ConflictError, JupyterGpuError, NotFoundError
from jupyter_gpu.schema import (
    Changes,
    Event,
    Kind,
    LocalSettings,
    LogLine,
    Phase,
    Place,
    QueueSet,
    Reason,
    Selector,
    Usage,
    WorkloadSpec,
)

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_TROUBLE_S = 0.5
_STEP_S = 10.0  # how long a submit waits for another process' step to end


@dataclass(frozen=True)
class _Opened:
    """What is there from the first use on."""

    site: Site
    tending: Tending
    watching: Watching


class LocalBackend(Backend):
    """A place on this machine, for this account.

    Nothing is opened before the first use.

    Args:
        name: the place's name.
        settings: what the site set.
        keeper: the command of a Keeper, started detached when something must wait; ``{settings}`` in it becomes the settings as
            JSON. Without one, those who watch stand in.
    """

    def __init__(self, name: str, settings: LocalSettings, *, keeper: Sequence[str] | None = None) -> None:
        self.name, self._settings, self._keeper = name, settings, keeper
        self._opened: _Opened | None = None
        self._opening = anyio.Lock()
        self._leadership: int | None = None
        self._closings = 0

    # ---- the place

    async def describe(self) -> Place:
        opened = await self._open()
        with suppress(BackendError):  # a full disk or a newer store: it can be shown all the same
            await self._tend(opened)
        return await self._run(describing.describe, opened.site, Moment.present())

    async def watch(self, selector: Selector = Selector()) -> AsyncIterator[Changes]:  # noqa: B008 - frozen
        is_first, closings = True, self._closings
        while closings == self._closings:  # a watch goes on in the store that there is now, if the old one was removed
            try:
                opened = await self._open()
                async with aclosing(opened.watching.watch(selector)) as steps:
                    async for changes in steps:
                        is_first = False
                        yield changes
            except JupyterGpuError:
                if is_first:
                    raise
                await anyio.sleep(_TROUBLE_S)

    async def tend(self, now: datetime) -> datetime | None:
        opened = await self._open()
        return (await self._tend(opened, now))[1]

    # ---- workloads

    async def submit(
        self, spec: WorkloadSpec, *, secrets: Mapping[str, str] | None = None, dry_run: bool = False
    ) -> tuple[Document, ...]:
        spec = spec.model_copy(update={"owner": account()})
        if dry_run:
            return await self._run(self._preview, spec, secrets or {})
        opened = await self._open()

        def submit_and_step() -> tuple[tuple[Document, ...], bool]:
            documents, is_new = submitting.submit(opened.site, spec, secrets or {}, Moment.present())
            return documents, not is_new or self._step_after(opened)

        documents, is_done = await self._run(submit_and_step)
        if not is_done:
            await self._step_soon(opened, spec.id)
        opened.watching.wake()
        return documents

    async def cancel(self, id: str, *, reason: Reason | None = None, grace_s: float | None = None) -> None:
        opened = await self._open()
        reason = reason or Reason(code="end.cancelled", message=f"it was cancelled by {account()}")

        def cancel_and_step() -> None:
            if settling.cancel(opened.site, id, reason, grace_s, Moment.present()):
                self._step_after(opened)  # those behind it may fit now

        await self._run(cancel_and_step)
        opened.watching.wake()

    async def logs(
        self,
        id: str,
        *,
        replica: int | None = None,
        attempt: int | None = None,
        since: datetime | None = None,
        follow: bool = False,
    ) -> AsyncIterator[LogLine]:
        opened = await self._open()
        row = await self._row(opened, id, replica or 0)
        attempt = row.attempt if attempt is None else attempt
        folder = opened.site.state.attempt(id, attempt)
        if attempt != row.attempt and not await self._run(stories.has_attempt, opened.site.store, id, attempt):
            raise NotFoundError(f"{id!r} has no attempt {attempt} whose log is kept; the newest is {row.attempt}")
        if not folder.path.exists():
            raise NotFoundError(f"the log of {id!r} is gone: {folder.path} was removed")
        reader = LogReader(folder.log, attempt, since)
        if follow and attempt == row.attempt:
            await opened.watching.look()
        while True:
            is_over = not follow or attempt != row.attempt or opened.watching.has_ended(id, attempt)
            lines = await self._run(reader.read)
            if lines is None and is_over:
                break
            if lines is None:
                await opened.watching.pause_patiently()
            for line in lines or ():
                yield line
        for line in reader.last():
            yield line

    @asynccontextmanager
    async def open_port(self, id: str, *, replica: int = 0, port: str) -> AsyncIterator[Address]:
        opened = await self._open()
        row = await self._row(opened, id, replica)
        # a kernel's sockets have their names before anything listens there
        is_up = row.phase == Phase.RUNNING or (row.phase == Phase.STARTING and row.kind == Kind.KERNEL)
        ports = await self._run(starting.ports_of, opened.site.state.attempt(id, row.attempt)) if is_up else None
        if ports is None:
            raise NotFoundError(f"{id!r} is {row.phase}: its ports can be opened while it runs")
        if port not in ports:
            raise NotFoundError(f"{id!r} has no port {port!r}; it has {', '.join(sorted(ports)) or 'none'}")
        place = ports[port]
        yield TcpAddress("127.0.0.1", place) if isinstance(place, int) else UnixAddress(Path(place))

    @asynccontextmanager
    async def hold(self, id: str) -> AsyncIterator[None]:
        opened = await self._open()
        await self._row(opened, id)
        await self._run(holding.hold, opened.site, id)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._run(holding.let_go, opened.site, id)

    async def connection(self, id: str) -> Mapping[str, str]:
        opened = await self._open()
        row = await self._row(opened, id)
        if row.owner != account():
            raise ConflictError(f"{id!r} belongs to {row.owner}")
        if row.kind != Kind.KERNEL:
            raise NotFoundError(f"{id!r} is no kernel, so nothing is told about its connection")
        secrets = await self._run(read_object, opened.site.state.attempt(id, row.attempt).secrets)
        if row.is_final or secrets is None:
            raise NotFoundError(f"the kernel {id!r} has ended, and its keys are gone")
        return secrets

    # ---- the queue, and what became of those who were in it

    async def reprioritise(self, id: str, priority: int) -> None:
        opened = await self._open()
        await self._run(ordering.reprioritise, opened.site, id, priority)
        await self._run(self._step_after, opened)
        opened.watching.wake()

    async def apply_queues(self, queues: QueueSet, *, dry_run: bool = False) -> None:
        opened = await self._open()
        await self._run(lambda: sharing.apply(opened.site, queues, dry_run=dry_run))
        if not dry_run:
            await self._run(self._step_after, opened)
            opened.watching.wake()

    async def story(self, id: str) -> tuple[Event, ...]:
        opened = await self._open()
        await self._row(opened, id)
        return await self._run(stories.story, opened.site.store, id)

    async def usage(self, since: datetime | None = None) -> tuple[Usage, ...]:
        opened = await self._open()
        with suppress(BackendError):  # a full disk or a newer store: it can be shown all the same
            await self._tend(opened)  # what has ended without a witness used nothing since
        return await self._run(accounting.usage, opened.site, since, Moment.present())

    # ---- the Keeper

    @asynccontextmanager
    async def keeper_leadership(self) -> AsyncIterator[bool]:
        """Be the Keeper of this place for as long as the context is open, or until `retire`; gives whether one is."""
        opened = await self._open()
        self._leadership = await self._run(keeping.take_leadership, opened.site.state.keeper_lock)
        try:
            yield self._leadership is not None
        finally:
            self._give_up_leadership()

    async def changed(self) -> None:
        """Return when a Workload has changed."""
        opened = await self._open()
        await opened.watching.changed()

    async def retire(self) -> bool:
        """Stop being the Keeper if nothing is QUEUED or may be again by itself, and return whether that was so.

        This is decided under the lock under which all steps are done. A submit takes that lock after it has written its row,
        and looks for a Keeper while it has it. So either the row is seen here, or the missing Keeper is seen there.
        """
        opened = await self._open()

        def decide() -> bool | None:
            with opened.tending.lock() as mine:
                if not mine:
                    return None
                if opened.tending.look_after_waiters():
                    return False
                self._give_up_leadership()
                return True

        while True:
            decision = await self._run(decide)
            if decision is not None:
                return decision
            await anyio.sleep(BUSY_S)

    async def aclose(self) -> None:
        self._closings += 1
        await self._close()

    # ---- ours

    async def _open(self) -> _Opened:
        async with self._opening:
            if self._opened is not None and self._opened.site.store.is_removed:
                await self._close()
            if self._opened is None:
                self._opened = await self._run(self._open_site)
            return self._opened

    async def _close(self) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            opened.watching.close()
            await run_sync(opened.watching.store.close)
            await run_sync(opened.site.store.close)
        self._give_up_leadership()

    def _open_site(self) -> _Opened:
        state = state_folder(self._settings)
        with ExitStack() as stack:
            mine, watched = (stack.enter_context(closing(Store(state.store))) for _ in range(2))
            site = Site(self.name, self._settings, state, mine, keeping.command(self._keeper, self._settings, state))
            tending = Tending(site)
            watching = Watching(state, watched, lambda: self._run(lambda: tending.step(Moment.present())), self._settings.poll_s)
            stack.pop_all()  # from here on `aclose` closes them
            return _Opened(site, tending, watching)

    def _preview(self, spec: WorkloadSpec, secrets: Mapping[str, str]) -> tuple[Document, ...]:
        if self._opened is not None:
            return submitting.preview(self._opened.site, spec, secrets)
        state = state_folder(self._settings, make=False)
        store = Store(state.store if state.store.exists() else None)
        try:
            return submitting.preview(Site(self.name, self._settings, state, store, None), spec, secrets)
        finally:
            store.close()

    async def _tend(self, opened: _Opened, now: datetime | None = None) -> tuple[bool, datetime | None]:
        step = await self._run(lambda: opened.tending.step(Moment.at(now or datetime.now(UTC))))
        opened.watching.wake()
        return step

    def _step_after(self, opened: _Opened) -> bool:
        """Do a step for what was just written, and return whether it could be tried.

        Its trouble is no trouble of whoever wrote that: it is there, and the next step goes on from it.
        """
        try:
            return opened.tending.step(Moment.present())[0]
        except (BackendError, OSError) as error:
            _log.warning("what waits in %s is looked at later: %s", self.name, error)
            return True

    async def _step_soon(self, opened: _Opened, id: str) -> None:
        """Do a step for a new Workload once another process is done with its own, unless that has seen it."""
        with anyio.move_on_after(_STEP_S):  # it is in its queue: whoever steps next will find it
            while not (await self._tend(opened))[0]:
                row = await self._run(rows.find, opened.site.store, id)
                if row is None or row.phase != Phase.QUEUED or row.reason:
                    return
                await anyio.sleep(BUSY_S / 10)

    async def _row(self, opened: _Opened, id: str, replica: int = 0) -> rows.Row:
        row = await self._run(rows.get, opened.site.store, id, self.name)
        if replica:
            raise NotFoundError(f"{id!r} has no replica {replica}; it has one, replica 0")
        return row

    async def _run(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Do blocking work in a thread, and translate what the system says of trouble."""

        def translated() -> _T:
            with foreign_errors(self._settings.state_folder or Path("the state folder")):
                return work(*arguments)

        return await run_sync(translated)

    def _give_up_leadership(self) -> None:
        if self._leadership is not None:
            descriptor, self._leadership = self._leadership, None
            locks.release(descriptor)
