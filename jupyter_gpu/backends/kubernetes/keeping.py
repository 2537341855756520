"""One Keeper step: end what must end, write down how what ended did, and remove leftovers and old stories.

The Keeper's Lease only saves work. Every act looks again before it, and may be done twice.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from jupyter_gpu.backends.kubernetes.attempts import Attempt, time_of
from jupyter_gpu.backends.kubernetes.holding import Presence
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.manifests.lease import CLIENT, expiry_of
from jupyter_gpu.backends.kubernetes.objects import METADATA_ONLY, Objects
from jupyter_gpu.backends.kubernetes.phases import starting_since, status_of
from jupyter_gpu.backends.kubernetes.stopping import is_half_done
from jupyter_gpu.backends.kubernetes.story import kept_usage
from jupyter_gpu.backends.kubernetes.watch import Reflector
from jupyter_gpu.errors import JupyterGpuError, NotFoundError
from jupyter_gpu.schema import Phase, Reason, WorkloadStatus

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_log = logging.getLogger(__name__)

_SOON = timedelta(seconds=2)
_RUNTIME_MARGIN = timedelta(seconds=30)  # the replica's own clock comes first
_LEASE_KEPT = timedelta(hours=1)
_SWEEP_EVERY_S = 15.0
_BREATH = 200  # so many Workloads are looked at before others get the event loop

End = Callable[[Attempt, Reason], Awaitable[None]]


class Keeper:
    """Does what must be done when nobody looks.

    Args:
        client: the API server.
        owner: the account whose Workloads it keeps.
        presence: this client's Leases.
        end: records that an attempt must end.
        leftover_s: how old a Secret without a Job must be to be swept up.
    """

    def __init__(self, client: Client, owner: str, presence: Presence, end: End, leftover_s: float) -> None:
        self._client, self._owner, self._presence, self._end = client, owner, presence, end
        self._leftover = timedelta(seconds=leftover_s)
        self._sweep_every_s = min(_SWEEP_EVERY_S, leftover_s)
        self._swept_at: float | None = None

    async def tend(self, reflector: Reflector, now: datetime) -> datetime | None:
        """Do one step over all Workloads; returns when to look again."""
        looks: list[datetime] = []
        for count, name in enumerate(reflector.names()):
            if count % _BREATH == _BREATH - 1:
                await checkpoint()
            attempts, workload = reflector.attempts(name), reflector.workload(name)
            if attempts and workload:
                looks += await self._tend_one(attempts, workload.status, now)
        await self._sweep(reflector)
        return min(looks, default=None)

    async def _tend_one(self, attempts: Sequence[Attempt], status: WorkloadStatus, now: datetime) -> list[datetime]:
        """Tend the attempts at a Workload, of which the newest stands as told; returns when to look at it again."""
        newest = attempts[-1]
        try:
            for attempt in attempts:
                if not attempt.is_settled and (own := status if attempt is newest else status_of(attempt)).phase.is_final:
                    await self._settle(attempt, own)
            due = await (
                self._forget_if_due(attempts, status, now) if status.phase.is_final else self._end_if_due(newest, status, now)
            )
        except JupyterGpuError as error:
            _log.warning("the Keeper could not tend %s, and tries again: %s", newest.name, error)
            due = now + _SOON
        return [due] if due else []

    async def _end_if_due(self, attempt: Attempt, status: WorkloadStatus, now: datetime) -> datetime:
        """End an attempt whose time has come; returns when to look at it again."""
        if attempt.wish:
            if is_half_done(attempt):
                await self._end(attempt, attempt.wish)
            return now + _SOON
        reason, due = await self._due(attempt, status, now)
        if reason:
            _log.info("%s is ended: %s", attempt.id, reason.message)
            await self._end(attempt, reason)
            return now + _SOON
        return min(due, now + _SOON) if status.phase is not Phase.RUNNING else due

    async def _due(self, attempt: Attempt, status: WorkloadStatus, now: datetime) -> tuple[Reason | None, datetime]:
        spec, later = attempt.spec, now + timedelta(days=1)
        if status.phase is Phase.RUNNING:
            if spec.max_runtime_s is None or status.started is None:
                return None, later
            limit = status.started + timedelta(seconds=spec.max_runtime_s) + _RUNTIME_MARGIN
            text = f"it ran longer than its limit of {spec.max_runtime_s:g} s"
            return (Reason(code="end.max_runtime", message=text) if now >= limit else None), limit
        if status.reason and status.reason.facts.get("heals") is False:
            return status.reason, now
        holds_some = any(replica.phase is not Phase.QUEUED for replica in status.replicas)
        if status.phase is Phase.STARTING or holds_some:  # half a gang keeps devices from others, and may wait for them in turn
            limit = starting_since(attempt) + timedelta(seconds=spec.start_timeout_s)
            return (_start_timeout(status, spec.start_timeout_s) if now >= limit else None), limit
        if spec.orphan_after_s is None or (since := await self._presence.unheld_since(attempt)) is None:
            return None, later
        limit = since + timedelta(seconds=spec.orphan_after_s)
        text = f"nobody has held it for {spec.orphan_after_s:g} s while it was queued"
        return (Reason(code="end.orphaned", message=text) if now >= limit else None), limit

    async def _settle(self, attempt: Attempt, status: WorkloadStatus) -> None:
        """Take the keys out of the cluster and write down how it ended, for its pods may not stay."""
        if attempt.spec.secrets:
            await self._client.delete(Objects.SECRETS, attempt.name)
        end = {labels.END: end_annotation(status)}
        if status.started and labels.STARTED not in attempt.annotations:
            end[labels.STARTED] = status.started.isoformat()
        if usage := kept_usage(attempt, status):
            end[labels.USAGE] = usage
        with suppress(NotFoundError):  # its story is gone already
            await self._client.patch(Objects.JOBS, attempt.name, {"metadata": {"annotations": end, "uid": attempt.uid}})

    async def _forget_if_due(self, attempts: Sequence[Attempt], status: WorkloadStatus, now: datetime) -> datetime | None:
        """Remove a story whose time is over: the newest attempt first, so that what is left never looks like the whole."""
        due = (status.ended or status.created) + timedelta(seconds=attempts[-1].spec.ttl_s)
        if now < due:
            return due
        for attempt in reversed(attempts):
            options = {"propagationPolicy": "Background", "preconditions": {"uid": attempt.uid}}
            await self._client.delete(Objects.JOBS, attempt.name, **options)
        return None

    async def _sweep(self, reflector: Reflector) -> None:
        """Remove Secrets without a Job, and Leases of clients that are long gone."""
        if self._swept_at is not None and time.monotonic() - self._swept_at < self._sweep_every_s:
            return
        self._swept_at = time.monotonic()
        attempts = [attempt for name in reflector.names() for attempt in reflector.attempts(name)]
        try:
            await self._sweep_secrets({attempt.name for attempt in attempts})
            await self._sweep_leases({attempt.holder for attempt in attempts})
        except JupyterGpuError as error:
            _log.info("leftovers stay for now: %s", error)

    async def _sweep_secrets(self, jobs: set[str]) -> None:
        selector = labels.selector(self._owner)
        secrets, _ = await self._client.list_all(Objects.SECRETS, accept=METADATA_ONLY, labelSelector=selector)
        for secret in secrets:
            metadata: dict[str, Any] = secret["metadata"]
            is_old = time_of(metadata["creationTimestamp"]) + self._leftover <= self._client.now()
            if metadata["name"] in jobs or not is_old or await self._is_job(metadata["name"]):
                continue
            _log.info("the Secret %s has no Job and is removed", metadata["name"])
            await self._client.delete(Objects.SECRETS, metadata["name"], preconditions={"uid": metadata["uid"]})

    async def _is_job(self, name: str) -> bool:
        try:
            await self._client.get(Objects.JOBS, name)
        except NotFoundError:
            return False
        return True

    async def _sweep_leases(self, named: set[str | None]) -> None:
        selector = f"{labels.selector(self._owner)},{labels.ROLE}={CLIENT}"
        leases, _ = await self._client.list_all(Objects.LEASES, labelSelector=selector)
        for lease in leases:
            name = lease["metadata"]["name"]
            if name not in named and expiry_of(lease) + _LEASE_KEPT < self._client.now():
                await self._client.delete(Objects.LEASES, name)


def end_annotation(status: WorkloadStatus) -> str:
    """Return how an attempt ended, as it is written onto its Job."""
    reason = status.reason.model_dump(mode="json") if status.reason else None
    return json.dumps({"reason": reason, "time": (status.ended or status.created).isoformat()})


def _start_timeout(status: WorkloadStatus, limit_s: float) -> Reason:
    last = status.reason.message if status.reason else ""
    text = f"it has not started within {limit_s:g} s" + (f"; last: {last}" if last else "")
    facts = {"last": status.reason.code} if status.reason else {}
    return Reason(code="start.timeout", message=text, facts=facts)
