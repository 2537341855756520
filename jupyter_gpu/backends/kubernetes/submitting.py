"""How a Workload is asked for: ConfigMap, Secret, Job, and then the Secret belongs to the Job.

Each step may have been done before, by somebody else or by ourselves before a crash: whoever makes the Job has submitted.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jupyter_gpu.backends.base import Document
from jupyter_gpu.backends.kubernetes.attempts import Attempt, Thing, attempts_of, time_of
from jupyter_gpu.backends.kubernetes.discovery import Discovery
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.manifests.configmap import replica_configmap
from jupyter_gpu.backends.kubernetes.manifests.job import attempt_job
from jupyter_gpu.backends.kubernetes.manifests.secret import attempt_secret, owned_by, without_values
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.backends.kubernetes.phases import status_of
from jupyter_gpu.backends.kubernetes.tasks import together
from jupyter_gpu.errors import ConflictError, InvalidRequestError, NotFoundError, UnsupportedError
from jupyter_gpu.names import object_name
from jupyter_gpu.schema import DEFAULT_QUEUE, WorkloadSpec

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_log = logging.getLogger(__name__)

_SECRET_NAME = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_CONFIGMAP_FRESH_S = 60.0
_RACE = timedelta(seconds=10)  # so long may pass between another's Secret and its Job


@dataclass(frozen=True)
class Found:
    """What there is of a Workload, of any owner."""

    attempts: tuple[Attempt, ...]
    version: str
    """resourceVersion of the whole, which grows with every change in the cluster."""

    @property
    def newest(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None


async def find(client: Client, id: str) -> Found:
    """Return what there is of a Workload, straight from the API server."""
    ours = {"labelSelector": f"{labels.MANAGED_BY}={labels.MANAGER},{labels.WORKLOAD}={object_name(id)}"}
    (jobs, version), (pods, _) = await together(
        lambda: client.list_all(Objects.JOBS, **ours), lambda: client.list_all(Objects.PODS, **ours)
    )
    return Found(tuple(attempt for attempt in attempts_of(jobs, pods) if attempt.id == id), version)


class Submitter:
    """Makes the objects of an attempt."""

    def __init__(self, client: Client, discovery: Discovery, observe: Callable[[Thing], None]) -> None:
        self._client, self._discovery, self._observe = client, discovery, observe
        self._configmap_at: float | None = None

    async def submit(
        self, spec: WorkloadSpec, secrets: Mapping[str, str], *, holder: str | None, dry_run: bool
    ) -> tuple[Document, ...]:
        """Make the objects of a new attempt, unless one with this content is there; see `Backend.submit`.

        Args:
            spec: what is asked for, with its owner.
            secrets: their values by name.
            holder: name of the Lease of this client, if it holds the Workload already.
            dry_run: whether only to check.
        """
        check_secrets(spec, secrets)
        _check_abilities(spec)
        prepare = self._discovery.refresh if dry_run else self._ensure_configmap
        found, _, _ = await together(lambda: find(self._client, spec.id), self._discovery.refresh, prepare)
        newest: Attempt | None = found.newest
        if newest:
            _check_owner(spec, newest)
        is_there = newest is not None and not status_of(newest).phase.is_final
        if newest and is_there:
            _check_content(spec, newest)
        number = 1 if newest is None else newest.number + (0 if is_there else 1)
        sequence = int(found.version) if found.version.isdecimal() else 0
        if not is_there:
            await self._discovery.check(spec)
        customs, products = self._discovery.customs, self._discovery.products(spec)
        job = attempt_job(spec, number, sequence=sequence, holder=holder, customs=customs, products=products)
        secret = attempt_secret(spec, number, secrets) if secrets or spec.secrets else None
        documents = (replica_configmap(), *((without_values(secret),) if secret else ()), job)
        if not is_there:
            await (self._create_job(job, dry_run=True) if dry_run else self._create(spec, job, secret))
        return documents

    async def _ensure_configmap(self) -> None:
        """Make the ConfigMap with the replica's zip, unless it was there a minute ago."""
        if self._configmap_at is not None and time.monotonic() - self._configmap_at < _CONFIGMAP_FRESH_S:
            return
        document = replica_configmap()
        try:
            await self._client.get(Objects.CONFIGMAPS, document["metadata"]["name"])
        except NotFoundError:
            with suppress(ConflictError):  # somebody else has just made it
                await self._client.create(Objects.CONFIGMAPS, document)
        self._configmap_at = time.monotonic()

    async def _create(self, spec: WorkloadSpec, job: Document, secret: dict[str, Any] | None) -> None:
        if secret:
            await self._create_secret(secret)
        try:
            created = await self._create_job(job)
        except ConflictError:
            found = await find(self._client, spec.id)
            there = next((attempt for attempt in found.attempts if attempt.name == job["metadata"]["name"]), None)
            if there is None:
                raise
            _check_owner(spec, there)
            _check_content(spec, there)
            return
        self._observe(created)
        if secret:
            try:
                await self._client.patch(Objects.SECRETS, secret["metadata"]["name"], owned_by(created))
            except NotFoundError:  # it was an old one, and the Keeper has just swept it up
                owned = {**secret, "metadata": {**secret["metadata"], **owned_by(created)["metadata"]}}
                await self._client.create(Objects.SECRETS, owned)

    async def _create_job(self, job: Document, *, dry_run: bool = False) -> dict[str, Any]:
        return await self._client.create(Objects.JOBS, job, dry_run=dry_run)

    async def _create_secret(self, secret: Mapping[str, Any]) -> None:
        """Make the Secret; one that is there stays, for its maker may be the one whose Job wins.

        Raises:
            ConflictError: it is of other content and fresh, or another owner's.
        """
        name = secret["metadata"]["name"]
        for is_last in (False, True):
            try:
                await self._client.create(Objects.SECRETS, secret)
                return
            except ConflictError:
                there = await _existing(lambda: self._client.get(Objects.SECRETS, name))
            if there is None:
                continue  # it went away in between
            annotations = there["metadata"].get("annotations") or {}
            if annotations.get(labels.OWNER) != secret["metadata"]["annotations"][labels.OWNER]:
                raise ConflictError(
                    f"the Secret {name} belongs to {annotations.get(labels.OWNER, 'somebody else')}; choose another id"
                )
            if annotations.get(labels.CONTENT) == secret["metadata"]["annotations"][labels.CONTENT]:
                return
            if is_last or time_of(there["metadata"]["creationTimestamp"]) + _RACE > self._client.now():
                raise ConflictError(f"{annotations.get(labels.ID, name)!r} is being submitted with other content; try again")
            await self._client.delete(Objects.SECRETS, name, preconditions={"uid": there["metadata"]["uid"]})


async def _existing(get: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any] | None:
    try:
        return await get()
    except NotFoundError:
        return None


def _check_owner(spec: WorkloadSpec, there: Attempt) -> None:
    if there.owner != spec.owner:
        raise ConflictError(f"{spec.id!r} belongs to {there.owner}; choose another id")
    if not there.is_readable:
        raise ConflictError(f"{spec.id!r} was written by another version of jupyter-gpu; update this one, or choose another id")


def _check_content(spec: WorkloadSpec, there: Attempt) -> None:
    if there.content != labels.content_of(spec):
        phase = status_of(there).phase
        raise ConflictError(f"{spec.id!r} is {phase} with other content; cancel it first, or choose another id")


def _check_abilities(spec: WorkloadSpec) -> None:
    if spec.queue != DEFAULT_QUEUE:
        raise InvalidRequestError(f"there is no queue {spec.queue!r} in this cluster; there is: {DEFAULT_QUEUE}")
    if spec.retries:
        raise UnsupportedError(
            f"a cluster does not try {spec.id!r} again by itself yet: leave retries out, and submit it again when it has failed"
        )


def check_secrets(spec: WorkloadSpec, secrets: Mapping[str, str]) -> None:
    """Refuse secrets whose names don't fit.

    Raises:
        InvalidRequestError: a name is none that a Secret can have.
    """
    for name in (*secrets, *spec.secrets):
        if not _SECRET_NAME.fullmatch(name) or name in (".", ".."):
            raise InvalidRequestError(f"{name!r} is no name for a secret: use letters, digits, dots, dashes and underscores")
