"""The Backend contract on a namespace of a Kubernetes cluster."""
# ruff: noqa: D102 - the contract's methods are documented in base.py

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from jupyter_gpu.backends.base import Address, Backend, Document
from jupyter_gpu.backends.kubernetes import demand, following, keeping
from jupyter_gpu.backends.kubernetes.attempts import Attempt, Thing, attempts_of
from jupyter_gpu.backends.kubernetes.discovery import Discovery
from jupyter_gpu.backends.kubernetes.holding import Presence
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.manifests.secret import values_of
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.backends.kubernetes.phases import status_of
from jupyter_gpu.backends.kubernetes.ports import Ports, Target
from jupyter_gpu.backends.kubernetes.stopping import Stopper
from jupyter_gpu.backends.kubernetes.story import events_of, usage_of
from jupyter_gpu.backends.kubernetes.submitting import Found, Submitter, find
from jupyter_gpu.backends.kubernetes.tasks import Tasks, together
from jupyter_gpu.backends.kubernetes.watch import Reflector
from jupyter_gpu.backends.sending import replica_zip
from jupyter_gpu.errors import ConflictError, NotAllowedError, NotFoundError, UnsupportedError
from jupyter_gpu.names import object_name
from jupyter_gpu.schema import (
    Changes,
    Event,
    Kind,
    KubernetesSettings,
    LogLine,
    Phase,
    Place,
    QueueSet,
    Reason,
    Selector,
    Usage,
    WorkloadSpec,
)

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_CLIENT = "jupyter_gpu.backends.kubernetes.client"


@dataclass(frozen=True)
class _Parts:
    """What there is once the API server has answered."""

    client: Client
    owner: str
    discovery: Discovery
    presence: Presence
    submitter: Submitter
    stopper: Stopper
    ports: Ports
    keeper: keeping.Keeper


class KubernetesBackend(Backend):
    """A namespace of a cluster, as the account of a kubeconfig or of a pod sees it. It connects when it is first used.

    Args:
        name: the place's name.
        settings: where it is.
        leftover_s: how old a Secret without a Job must be to be swept up.
    """

    def __init__(self, name: str, settings: KubernetesSettings, *, leftover_s: float = 60.0) -> None:
        self.name = name
        self._settings, self._leftover_s = settings, leftover_s
        self._lock = anyio.Lock()
        self._tasks = Tasks()
        self._parts: _Parts | None = None
        self._reflector: Reflector | None = None

    async def describe(self) -> Place:
        parts = await self._connected()
        discovery = parts.discovery
        await discovery.refresh(at_most_s=1.0)
        (version, engines), (taken, blind), rights, attempts = await together(
            discovery.served, discovery.taken, discovery.missing_rights, self._newest_attempts
        )
        notes = (f"Kubernetes {version}", *(f"{engine} is installed, and not used yet" for engine in engines), *discovery.notes)
        standing = demand.Standing.of(attempts, discovery, taken, parts.client.now().timestamp())
        return Place(
            name=self.name,
            backend="kubernetes",
            identity=parts.owner,
            address=f"{parts.client.host}, namespace {parts.client.namespace}",
            engines=("Job",),
            capacity=discovery.capacity,
            may_grow=discovery.sizes is None,
            free=None if taken is None else standing.free,
            nodes=discovery.nodes,
            queues=standing.queues(),
            queue_set=standing.queue_set,
            stocks=standing.stocks,
            claims=standing.claims,
            holdings=standing.holdings,
            time_s=standing.now_s,
            missing=(*discovery.missing, *((blind,) if blind else ()), *rights),
            notes=notes,
        )

    async def _newest_attempts(self) -> list[Attempt]:
        try:
            reflector = await self._reflecting()
        except NotAllowedError:
            return []  # the review of rights names what is missing
        newest = (reflector.newest(name) for name in reflector.names())
        return [attempt for attempt in newest if attempt and attempt.is_readable]

    async def watch(self, selector: Selector = Selector()) -> AsyncGenerator[Changes]:  # noqa: B008 - frozen
        reflector = await self._reflecting()
        async with aclosing(reflector.read(selector)) as steps:
            async for changes in steps:
                yield changes

    async def submit(
        self, spec: WorkloadSpec, *, secrets: Mapping[str, str] | None = None, dry_run: bool = False
    ) -> tuple[Document, ...]:
        parts = await self._connected()
        spec = spec.model_copy(update={"owner": parts.owner})
        holder = parts.presence.name if parts.presence.holds(spec.id) else None
        return await parts.submitter.submit(spec, secrets or {}, holder=holder, dry_run=dry_run)

    async def cancel(self, id: str, *, reason: Reason | None = None, grace_s: float | None = None) -> None:
        parts = await self._connected()
        attempt = await self._mine(id)
        if not status_of(attempt).phase.is_final:
            cancelled = Reason(code="end.cancelled", message=f"it was cancelled by {parts.owner}")
            await parts.stopper.stop(attempt, reason or cancelled, grace_s)

    async def logs(
        self,
        id: str,
        *,
        replica: int | None = None,
        attempt: int | None = None,
        since: datetime | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[LogLine]:
        parts = await self._connected()
        newest = await self._mine(id)
        chosen = newest if attempt is None else await self._mine(id, attempt)
        if replica is not None and replica not in range(chosen.spec.replicas):
            raise NotFoundError(f"{id!r} has no replica {replica}; it has {chosen.spec.replicas}, counted from 0")
        ranks = range(chosen.spec.replicas) if replica is None else (replica,)
        log = following.AttemptLog(parts.client, chosen, ranks, since)
        async with aclosing(log.follow(await self._reflecting()) if follow else log.read()) as lines:
            async for line in lines:
                yield line

    @asynccontextmanager
    async def open_port(self, id: str, *, replica: int = 0, port: str) -> AsyncIterator[Address]:
        parts = await self._connected()
        async with parts.ports.open(await self._target(id, replica, port)) as address:
            yield address

    @asynccontextmanager
    async def hold(self, id: str) -> AsyncIterator[None]:
        parts = await self._connected()
        async with parts.presence.hold(id, lambda: self._mine(id)):
            yield

    async def connection(self, id: str) -> Mapping[str, str]:
        parts = await self._connected()
        attempt = (await find(parts.client, id)).newest
        if attempt and attempt.owner != parts.owner:
            raise ConflictError(f"{id!r} belongs to {attempt.owner}")
        if attempt is None or not attempt.is_readable or attempt.spec.kind is not Kind.KERNEL:
            raise NotFoundError(f"there is no kernel {id!r} at {self.name}")
        ended = NotFoundError(f"the kernel {id!r} has ended, and its keys are gone")
        if status_of(attempt).phase.is_final:
            await parts.stopper.take_keys_back(attempt)
            raise ended
        try:
            return values_of(await parts.client.get(Objects.SECRETS, attempt.name))
        except NotFoundError as error:
            raise ended from error

    async def tend(self, now: datetime) -> datetime | None:
        parts = await self._connected()
        reflector = await self._reflecting()
        if (others_until := await parts.presence.keep()) is not None:
            return others_until - parts.client.clock_offset
        look = await parts.keeper.tend(reflector, now + parts.client.clock_offset)
        return look - parts.client.clock_offset if look else None

    async def reprioritise(self, id: str, priority: int) -> None:
        attempt = await self._mine(id)
        if status_of(attempt).phase.is_final:
            raise ConflictError(f"{id!r} has ended")
        raise UnsupportedError(
            f"the priority of {id!r} can't be changed: the cluster gives a Job's pods theirs when they are made; "
            f"cancel it, and submit it again with priority {priority}"
        )

    async def story(self, id: str) -> tuple[Event, ...]:
        attempts = await self._all_mine(id)
        with suppress(NotAllowedError):
            reflector = await self._reflecting()
            attempts = [reflector.with_trouble(attempt) for attempt in attempts]
        return events_of(attempts)

    async def usage(self, since: datetime | None = None) -> tuple[Usage, ...]:
        parts = await self._connected()
        ours = {"labelSelector": labels.selector(parts.owner)}
        (jobs, _), (pods, _) = await together(
            lambda: parts.client.list_all(Objects.JOBS, **ours), lambda: parts.client.list_all(Objects.PODS, **ours)
        )
        mine = [attempt for attempt in attempts_of(jobs, pods) if attempt.is_readable and attempt.owner == parts.owner]
        used = [usage for attempt in mine if (usage := usage_of(attempt, parts.client.now()))]
        wanted = [usage for usage in used if since is None or usage.ended is None or usage.ended > since]
        return tuple(sorted(wanted, key=lambda usage: (usage.started, usage.id, usage.attempt)))

    async def apply_queues(self, queues: QueueSet, *, dry_run: bool = False) -> None:
        parts = await self._connected()
        raise UnsupportedError(
            f"the queues of {self.name} are the cluster's: whoever administers it sets the share of the namespace "
            f"{parts.client.namespace}, with a ResourceQuota"
        )

    async def aclose(self) -> None:
        parts, self._parts = self._parts, None
        reflector, self._reflector = self._reflector, None
        if reflector:
            await reflector.aclose()
        if parts:
            parts.ports.close()
        await self._tasks.aclose()
        if parts:
            await parts.presence.aclose()
            await parts.client.aclose()

    async def _connected(self) -> _Parts:
        async with self._lock:
            if self._parts is None:
                self._parts = await self._connect()
            return self._parts

    async def _connect(self) -> _Parts:
        """Read the configuration and ask who we are there."""
        module = await anyio.to_thread.run_sync(_load)
        client: Client = await module.Client.connect(self._settings)
        try:
            path = client.path(module.Objects.SELF_REVIEWS)
            review = await client.call("POST", path, body={}, what="ask who this account is")
        except BaseException:
            with anyio.CancelScope(shield=True):
                await client.aclose()
            raise
        owner = review["status"]["userInfo"]["username"]
        discovery = Discovery(client, self._settings)
        presence = Presence(client, owner, self._settings.client_lease_s, self._tasks)
        return _Parts(
            client=client,
            owner=owner,
            discovery=discovery,
            presence=presence,
            submitter=Submitter(client, discovery, self._observe),
            stopper=Stopper(client, self._observe),
            ports=Ports(client, self._settings.reach, self._tasks),
            keeper=keeping.Keeper(client, owner, presence, self._end_as_due, self._leftover_s),
        )

    async def _reflecting(self) -> Reflector:
        parts = await self._connected()
        async with self._lock:
            if self._reflector is None:
                reflector = Reflector(parts.client, parts.owner, lambda: parts.discovery.sizes)
                try:
                    await reflector.start()
                except BaseException:
                    await reflector.aclose()
                    raise
                self._reflector = reflector
            return self._reflector

    def _observe(self, job: Thing) -> None:
        """Take a Job that we have just written, so that a watch opened after it shows it."""
        if self._reflector:
            self._reflector.observe(job)

    async def _mine(self, id: str, number: int | None = None) -> Attempt:
        """Return an attempt at a Workload of this account, the newest or a given one, straight from the API server."""
        mine = await self._all_mine(id)
        if number is None:
            return mine[-1]
        chosen = next((attempt for attempt in mine if attempt.number == number), None)
        if chosen is None:
            raise NotFoundError(f"{id!r} has no attempt {number}; the newest is {mine[-1].number}")
        return chosen

    async def _all_mine(self, id: str) -> list[Attempt]:
        """Return all attempts at a Workload of this account, the newest last."""
        parts = await self._connected()
        found: Found = await find(parts.client, id)
        mine = [attempt for attempt in found.attempts if attempt.owner == parts.owner and attempt.is_readable]
        if not mine:
            raise NotFoundError(f"there is no workload {id!r} at {self.name}")
        return mine

    async def _end_as_due(self, due: Attempt, reason: Reason) -> None:
        """End an attempt for the Keeper, unless it has got on since the Keeper saw it."""
        parts = await self._connected()
        attempt = await self._mine(due.id, due.number)
        phase = status_of(attempt).phase
        if not phase.is_final and (phase is not Phase.RUNNING or attempt.wish or reason.code == "end.max_runtime"):
            await parts.stopper.stop(attempt, reason)

    async def _target(self, id: str, replica: int, port: str) -> Target:
        """Return the pod and port that are meant, by what the watch knows if it knows, for a kernel opens many."""
        known = self._reflector.newest(object_name(id)) if self._reflector else None
        for attempt in (known if known and known.is_readable else None, None):
            chosen = attempt or await self._mine(id)
            named = next((one for one in chosen.spec.ports if one.name == port), None)
            if named is None and attempt is None:
                names = ", ".join(one.name for one in chosen.spec.ports) or "none"
                raise NotFoundError(f"{id!r} has no port {port!r}; it has: {names}")
            pod = following.running_pod(chosen, replica)
            if pod and named:
                return Target(pod["metadata"]["name"], pod["status"]["podIP"], named, chosen.spec.kind is Kind.KERNEL)
        raise NotFoundError(f"replica {replica} of {id!r} is not running")


def _load() -> Any:
    """Return the module of the client; takes long the first time, and so does making the replica's zip."""
    replica_zip(compiled=False)
    return importlib.import_module(_CLIENT)
