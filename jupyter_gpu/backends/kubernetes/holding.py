"""That a client lives and what it holds, and who does the Keeper's work: Leases, one per client."""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio

from jupyter_gpu.backends.kubernetes.attempts import Attempt
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.manifests.lease import CLIENT, KEEPER, expiry_of, is_good, lease, renewal
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.backends.kubernetes.tasks import Tasks
from jupyter_gpu.errors import ConflictError, JupyterGpuError, NotAllowedError, NotFoundError
from jupyter_gpu.names import object_name

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_log = logging.getLogger(__name__)

_TRIES = 5

Look = Callable[[], Awaitable[Attempt]]
"""Returns the newest attempt at a Workload, as it is now."""


@dataclass
class _Process:
    """What this process holds in one namespace, by however many clients."""

    name: str
    holds: Counter[str] = field(default_factory=Counter)
    clients: int = 0


_processes: dict[tuple[int, str, str, str], _Process] = {}
"""By process id (a fork is another process), API server, namespace and account."""


class Presence:
    """That this process lives, and what it holds: by a Lease, which all its clients of a namespace share.

    The Lease is made when something is held for the first time, renewed three times in its life, and deleted at the end. Where
    the account may not use Leases it still writes its name onto what it holds; others can't tell then whether it lives.
    """

    def __init__(self, client: Client, owner: str, lease_s: float, tasks: Tasks) -> None:
        host, pid = socket.gethostname(), os.getpid()
        self.title = f"{_account()} on {host}, process {pid}"
        self._client, self._owner, self._lease_s, self._tasks = client, owner, lease_s, tasks
        name = f"jupyter-gpu-client-{object_name(host, length=20)}-{pid}-{secrets.token_hex(4)}"
        self._process = _processes.setdefault((pid, client.host, client.namespace, owner), _Process(name))
        self._process.clients += 1
        self._lock = anyio.Lock()
        self._is_known = self._is_closed = False
        self._may = True
        self._keeps_until: datetime | None = None
        self._lately: dict[str, tuple[float, dict[str, Any] | None]] = {}

    @property
    def name(self) -> str:
        """The name of the process' Lease."""
        return self._process.name

    def holds(self, id: str) -> bool:
        """Whether this process holds a Workload."""
        return self._process.holds[id] > 0

    @asynccontextmanager
    async def hold(self, id: str, look: Look) -> AsyncIterator[None]:
        """Hold a Workload; ``look`` returns its newest `Attempt`.

        Raises:
            ConflictError: another process holds it and may be alive.
        """
        async with self._lock:
            if not self._is_known:
                await self._announce()
            if not self.holds(id):
                await self._take(look)
            self._process.holds[id] += 1
        try:
            yield
        finally:
            self._process.holds[id] -= 1
            with anyio.CancelScope(shield=True), anyio.move_on_after(self._lease_s):
                async with self._lock:
                    if not self.holds(id) and not self._is_closed:
                        await self._let_go(look)

    async def unheld_since(self, attempt: Attempt) -> datetime | None:
        """Return since when nobody holds an attempt; None if somebody does, or if it can't be told.

        A holder whose Lease is gone is struck out: the time counts from now.
        """
        if attempt.holder is None:
            text = attempt.annotations.get(labels.UNHELD_SINCE)
            return datetime.fromisoformat(text) if text else attempt.created
        try:
            held = await self._read_lately(attempt.holder)
        except NotAllowedError:
            return None
        if held is None:
            now = self._client.now()
            change = {"annotations": {labels.HOLDER: None, labels.UNHELD_SINCE: now.isoformat()}}
            await self._client.patch(Objects.JOBS, attempt.name, {"metadata": change | {"resourceVersion": attempt.version}})
            return now
        return None if is_good(held, self._client.now()) else expiry_of(held)

    async def keep(self) -> datetime | None:
        """Take or renew the Keeper's Lease of this account; returns until when another client has it, None if this one does."""
        now = self._client.now()
        if not self._may or (self._keeps_until and now < self._keeps_until - timedelta(seconds=self._lease_s * 2 / 3)):
            return None
        try:
            return await self._keep(now)
        except ConflictError:
            return now + timedelta(seconds=self._lease_s)  # somebody was quicker
        except NotAllowedError:
            self._may = False
            return None

    async def aclose(self) -> None:
        """Give back the Leases."""
        self._process.clients -= 1
        names = [self.name] if self._is_known and not self._process.clients else []
        names += [self._keeper_name] if self._keeps_until else []
        with anyio.CancelScope(shield=True), anyio.move_on_after(self._lease_s):
            for name in names:
                try:
                    await self._client.delete(Objects.LEASES, name)
                except JupyterGpuError as error:
                    _log.info("the Lease %s is left to run out: %s", name, error)
        self._is_known, self._keeps_until, self._is_closed = False, None, True

    @property
    def _keeper_name(self) -> str:
        return f"jupyter-gpu-keeper-{labels.owner_label(self._owner)}"

    async def _keep(self, now: datetime) -> datetime | None:
        wanted = lease(self._keeper_name, KEEPER, self._owner, self.name, self._lease_s, now)
        known = await self._read(self._keeper_name)
        if known is None:
            await self._client.create(Objects.LEASES, wanted)
        elif known["spec"]["holderIdentity"] != self.name and is_good(known, now):
            return expiry_of(known)
        else:
            version = {"metadata": {"resourceVersion": known["metadata"]["resourceVersion"]}}
            await self._client.patch(Objects.LEASES, self._keeper_name, version | {"spec": wanted["spec"]})
        self._keeps_until = now + timedelta(seconds=self._lease_s)
        return None

    async def _announce(self) -> None:
        """Make the process' Lease, and keep it good from now on."""
        if not self._may:
            return
        try:
            await self._create_lease()
        except NotAllowedError as error:
            self._may = False
            _log.warning("others can't tell whether this client lives: %s", error)
            return
        self._is_known = True
        self._tasks.start(self._renew())

    async def _create_lease(self) -> None:
        document = lease(self.name, CLIENT, self._owner, self.title, self._lease_s, self._client.now())
        with suppress(ConflictError):  # another client of this process has made it
            await self._client.create(Objects.LEASES, document)

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(self._lease_s / 3)
            try:
                if not await self._is_renewed():
                    await self._create_lease()
            except JupyterGpuError as error:
                _log.info("the Lease %s could not be renewed, which is tried again: %s", self.name, error)

    async def _is_renewed(self) -> bool:
        """Renew the Lease; returns whether it was still there."""
        try:
            await self._client.patch(Objects.LEASES, self.name, {"spec": renewal(self._client.now())})
        except NotFoundError:
            return False
        return True

    async def _take(self, look: Look) -> None:
        def mine(attempt: Attempt) -> dict[str, str | None]:
            return {labels.HOLDER: self.name, labels.UNHELD_SINCE: None}

        await self._mark(look, mine)

    async def _let_go(self, look: Look) -> None:
        def nobodys(attempt: Attempt) -> dict[str, str | None] | None:
            now = self._client.now().isoformat()
            return {labels.HOLDER: None, labels.UNHELD_SINCE: now} if attempt.holder == self.name else None

        try:
            await self._mark(look, nobodys)
        except JupyterGpuError as error:
            _log.info("letting go is left to the end of the Lease %s: %s", self.name, error)

    async def _mark(self, look: Look, change: Callable[[Attempt], dict[str, str | None] | None]) -> None:
        """Change the annotations of the newest attempt, unless somebody else holds it or it changes meanwhile."""
        for _ in range(_TRIES):
            attempt = await look()
            if attempt.holder and attempt.holder != self.name and (other := await self._living(attempt.holder)):
                raise ConflictError(f"{attempt.id!r} is held by {other}")
            if not (annotations := change(attempt)):
                return
            try:
                metadata = {"resourceVersion": attempt.version, "annotations": annotations}
                await self._client.patch(Objects.JOBS, attempt.name, {"metadata": metadata})
                return
            except (ConflictError, NotFoundError):
                continue  # it changed meanwhile: look who holds it now
        raise ConflictError(f"{attempt.id!r} changes all the time; try again")

    async def _living(self, name: str) -> str | None:
        """Return in words who has a client's Lease, if it is still good."""
        try:
            held = await self._read(name)
        except NotAllowedError:
            return None
        if held is None or not is_good(held, self._client.now()):
            return None
        return str(held["spec"]["holderIdentity"])

    async def _read_lately(self, name: str) -> dict[str, Any] | None:
        """Return a Lease as it was at most a second ago: thousands of Workloads may name the same."""
        at, held = self._lately.get(name, (0.0, None))
        if time.monotonic() - at > 1.0:
            held = await self._read(name)
            self._lately[name] = (time.monotonic(), held)
        return held

    async def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._client.get(Objects.LEASES, name)
        except NotFoundError:
            return None


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
