"""Configuration -> backend -> services: one event loop in one thread per process, and the only two bridges to it."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - registers its own end, and ours must come after that to be called before it
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from types import TracebackType
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal
from traitlets.config import Config

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.config import Site, load_site
from jupyter_gpu.schema import (
    DEFAULT_QUEUE,
    Event,
    Forecast,
    Kind,
    KubernetesSettings,
    LocalSettings,
    LogLine,
    Place,
    PlaceSettings,
    QueueSet,
    QueueStatus,
    Selector,
    Start,
    Workload,
    WorkloadSpec,
)
from jupyter_gpu.schema.base import Priority, Time
from jupyter_gpu.schema.explaining import checked
from jupyter_gpu.services import Services
from jupyter_gpu.services.queues import Difference
from jupyter_gpu.services.usage import By, UsageSum, fold

T = TypeVar("T")
_BUFFERED = 256
_STOP_S = 5.0


class Connection:
    """One place as this process sees it: its services, on the one loop that all connections share.

    The backend is made, and its client library imported, by the first call, on that loop.
    """

    def __init__(self, name: str, settings: PlaceSettings) -> None:
        self.name, self.settings = name, settings
        self.users = 0
        """How many have opened it and not closed it."""
        self._portal = _portal()

    @cached_property
    def _services(self) -> Services:
        return Services(make_backend(self.name, self.settings))

    def call(self, fn: Callable[[Services], Awaitable[T]]) -> Future[T]:
        """Run ``fn(services)`` on the loop. From another loop: ``await asyncio.wrap_future(connection.call(...))``."""

        async def run() -> T:
            return await fn(self._services)

        return self._portal.start_task_soon(run)

    @contextmanager
    def stream(self, fn: Callable[[Services], AsyncIterator[T]]) -> Iterator[Iterator[T]]:
        """Iterate here over what ``fn(services)`` yields there; one task owns the iterator and ends with the context.

        The queue between is bounded, so a slow reader slows the source down.
        """
        send, receive = self._portal.call(_make_stream)

        async def pump() -> None:
            async with send, aclosing(fn(self._services)) as source:  # type: ignore[type-var]
                async for item in source:
                    await send.send(item)

        async def some() -> list[T]:
            found = [await receive.receive()]
            with suppress(anyio.WouldBlock, anyio.EndOfStream):
                while len(found) < _BUFFERED:  # to cross the threads takes longer than most items
                    found.append(receive.receive_nowait())
            return found

        def items() -> Iterator[T]:
            while True:
                try:
                    found = self._portal.call(some)
                except anyio.EndOfStream:
                    task.result()  # raises what ended it, if that was no ordinary end
                    return
                yield from found

        task = self._portal.start_task_soon(pump)
        try:
            yield items()
        finally:
            task.cancel()
            self._portal.call(receive.aclose)

    def close(self) -> None:
        """Let go of the place, if nobody else in this process has it; what runs there runs on."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            _connections.pop((os.getpid(), self.name, self.settings), None)
        self.call(lambda services: services.aclose()).result()


class Gpu:
    """The synchronous face of the services, for people: ``gpu = jupyter_gpu.connect()``."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def place(self) -> Place:
        """Return the place as it is now."""
        return self._call(lambda services: services.workloads.place())

    def list(self, *, ended: bool = False, selector: Selector | None = None) -> list[Workload]:
        """Return my Workloads: running, queued, and with ``ended`` those that are over."""
        return self._call(lambda services: services.workloads.all(selector, ended=ended))

    def get(self, text: str) -> Workload:
        """Return the Workload that an id, the start of one, or a name means."""
        return self._call(lambda services: services.workloads.find(text))

    def cancel(self, text: str) -> Workload:
        """End a Workload, QUEUED or running, and return it as it was."""
        workload = self.get(text)
        self._call(lambda services: services.workloads.cancel(workload.spec.id))
        return workload

    def forecast(
        self,
        *,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        replicas: int = 1,
        start: Start = Start.TOGETHER,
        max_runtime_s: float | None = None,
        **resources: Any,
    ) -> Forecast:
        """Return whether a Workload would start now, and if not, why: ``gpu.forecast(gpus=2, queue="vision")``.

        Nothing is created.

        Args:
            queue: its queue.
            priority: higher starts first.
            replicas: how many of that size.
            start: ``together``, or ``as_they_fit``.
            max_runtime_s: seconds after which it would be ended.
            **resources: of each replica, the fields of `Resources`: ``gpus``, ``accelerator``, ``product``, ``cpus``,
                ``memory_bytes``.

        Raises:
            InvalidRequestError: a value is wrong, or there is no such queue.
        """
        wish: dict[str, Any] = {"id": "forecast", "name": "forecast", "kind": Kind.BATCH, "command": ("true",), "queue": queue}
        wish |= {"priority": priority, "replicas": replicas, "start": start, "max_runtime_s": max_runtime_s}
        spec: WorkloadSpec = checked(WorkloadSpec, wish | {"resources": resources}, "")
        return self._call(lambda services: services.queues.forecast(spec))

    def why(self, text: str) -> Forecast | None:
        """Return what a QUEUED Workload waits for, after whom, and when it starts at the latest.

        None if it does not wait, or where another scheduler decides; its phase's reason says more then.
        """
        workload = self.get(text)
        return self._call(lambda services: services.queues.why(workload))

    def set_priority(self, text: str, priority: int) -> Workload:
        """Give a Workload another priority, and return it as it was; higher starts first.

        Raises:
            InvalidRequestError: the number is out of range.
            ConflictError: it has ended.
            UnsupportedError: the place can't change it, or not any more.
        """
        workload = self.get(text)
        number: int = checked(Priority, priority, "priority")
        self._call(lambda services: services.workloads.set_priority(workload.spec.id, number))
        return workload

    def story(self, text: str) -> tuple[Event, ...]:
        """Return what became of a Workload: every phase of every attempt, with its time and reason, oldest first."""
        id = self.get(text).spec.id
        return self._call(lambda services: services.workloads.story(id))

    def usage(self, *, since: datetime | None = None, by: By = By.QUEUE) -> tuple[UsageSum, ...]:
        """Return what was used since a time, or of all that the place still knows, summed up by queue, owner or workload.

        Raises:
            InvalidRequestError: ``since`` has no zone, or ``by`` is none of these.
        """
        begin: datetime | None = checked(Time | None, since, "since")
        kind: By = checked(By, by, "by")
        records = self._call(lambda services: services.workloads.usage(begin))
        return fold(records, kind, since=begin, now=datetime.now(UTC))

    def queues(self) -> tuple[QueueStatus, ...]:
        """Return the queues: their quotas, what is used and borrowed of them, who holds and who waits."""
        return self.place().queues

    def apply_queues(self, queues: QueueSet | Mapping[str, Any], *, dry_run: bool = False) -> tuple[Difference, ...]:
        """Set the queues of the place, all of them at once, and return what that changes.

        Args:
            queues: all of them; those that are there and not in it are removed.
            dry_run: change nothing, only say what would be.

        Raises:
            InvalidRequestError: it is wrong, and the message says where; or a quota is of something that the place does not have.
            ConflictError: a queue that would be gone has work.
            UnsupportedError: the queues of this place are not ours to set.
        """
        wanted: QueueSet = checked(QueueSet, queues, "")
        return self._call(lambda services: services.queues.apply(wanted, dry_run=dry_run))

    @contextmanager
    def follow(self, id: str) -> Iterator[Iterator[Workload]]:
        """Iterate over a Workload's changes until it is final."""
        with self.connection.stream(lambda services: services.workloads.follow(id)) as changes:
            yield changes

    def logs(
        self,
        text: str,
        *,
        replica: int | None = None,
        attempt: int | None = None,
        since: datetime | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """Iterate over what a Workload said; with ``follow`` until its end."""
        id = self.get(text).spec.id
        with self.connection.stream(
            lambda services: services.workloads.logs(id, replica=replica, attempt=attempt, since=since, follow=follow)
        ) as lines:
            yield from lines

    def close(self) -> None:
        """Let go of the place; what runs there runs on."""
        self.connection.close()

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _call(self, fn: Callable[[Services], Awaitable[T]]) -> T:
        return self.connection.call(fn).result()


def connect(place: str | None = None, *, site: Site | None = None) -> Gpu:
    """Connect to a place by its name in the configuration; the default one without a name.

    Connections to the same place share one backend per process.

    Raises:
        InvalidRequestError: the configuration is wrong.
        NotFoundError: it has no such place.
    """
    return Gpu(open_connection(place, site=site))


def open_connection(place: str | None = None, *, site: Site | None = None, config: Config | None = None) -> Connection:
    """Return this process's connection to a place; ``config`` is an application's own, on top of the files. See `connect`."""
    name, settings = (site or load_site(config)).place(place)
    key = (os.getpid(), name, settings)
    with _lock:
        if key not in _connections:
            _connections[key] = Connection(name, settings)
        _connections[key].users += 1
        return _connections[key]


def make_backend(name: str, settings: PlaceSettings) -> Backend:
    """Return the backend for a place's settings."""
    if isinstance(settings, KubernetesSettings):
        from jupyter_gpu.backends.kubernetes import KubernetesBackend

        return KubernetesBackend(name, settings)
    assert isinstance(settings, LocalSettings)
    from jupyter_gpu.backends.local import LocalBackend

    keeper = (sys.executable, "-m", "jupyter_gpu", "keeper", "--settings", "{settings}", "--name", name)
    return LocalBackend(name, settings, keeper=keeper)


async def _make_stream() -> Any:
    return anyio.create_memory_object_stream[Any](_BUFFERED)


# ---- the one loop

_lock = threading.RLock()
_connections: dict[tuple[int, str, PlaceSettings], Connection] = {}
_portals: dict[int, BlockingPortal] = {}  # by process: a fork has none of its parent's threads


def _portal() -> BlockingPortal:
    with _lock:
        if os.getpid() not in _portals:
            started: Future[BlockingPortal] = Future()
            threading.Thread(target=_run_loop, args=(started,), name="jupyter-gpu", daemon=True).start()
            _portals.clear()
            _portals[os.getpid()] = started.result()
        return _portals[os.getpid()]


def _run_loop(started: Future[BlockingPortal]) -> None:
    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    anyio.run(serve)


def _close_all() -> None:
    mine = [connection for (pid, *_), connection in _connections.items() if pid == os.getpid()]
    for connection in mine:
        future = connection.call(lambda services: services.aclose())
        try:
            future.result(_STOP_S)
        except Exception:  # noqa: BLE001 - the process ends anyway, and what runs in the place runs on
            future.cancel()


# Before the interpreter ends its thread pools, which aiohttp needs to the last: atexit comes after that. (CPython has no public
# name for it; where it goes away, connections are cut instead of closed.)
getattr(threading, "_register_atexit", atexit.register)(_close_all)
