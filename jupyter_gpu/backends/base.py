"""The contract of a backend. What stands here is all that a new kind of place needs, and `tests/contract/` checks all of it.

Rules that hold for every method:

- **The authority is the place**: the cluster's objects, the local store. A backend keeps nothing in memory that matters when its
  process ends; two servers and a command line may act on the same place at once.
- All methods run on one event loop, none blocks it, every one may be cancelled at any await.
- Foreign errors never leave a backend: they become errors of `jupyter_gpu.errors`, with the cause attached.
- A backend shows and touches only the Workloads of its own account.
- A final phase is written only when the last process is gone and the devices are free.
- Replicas that start ``together`` are one attempt: when one fails, the others are told to end, and the Workload ends FAILED.
- Replicas that start ``as_they_fit`` are tried each by itself: attempts, ``retries`` and ``max_runtime_s`` are each one's own;
  the Workload's attempt is the newest of them, and it is QUEUED while some have still to start and none holds anything. When
  one fails the others go on; it ends FAILED if any failed, SUCCEEDED if all succeeded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jupyter_gpu.errors import UnsupportedError
from jupyter_gpu.schema import Changes, Event, LogLine, Place, QueueSet, Reason, Selector, Usage, WorkloadSpec

PROTOCOL = 1
"""What this code writes into every object and every runner's specification; one version back is served."""

Document = Mapping[str, Any]
"""One object as it would be written to the place. It holds no secret values."""


@dataclass(frozen=True)
class UnixAddress:
    """A Unix socket. Its name ends in ``-<number of the port>``, as ZeroMQ's ipc transport in Jupyter wants it."""

    path: Path


@dataclass(frozen=True)
class TcpAddress:
    """A TCP port that can be reached from here."""

    host: str
    port: int


Address = UnixAddress | TcpAddress


class Backend(ABC):
    """One place, as one account sees it. `async with` or `aclose` ends it; what it started in the place goes on."""

    name: str
    """The place's name in the configuration."""

    @abstractmethod
    async def describe(self) -> Place:
        """Return the place as it is now.

        What could not be read stands in ``missing`` with the right that it would need; that is no error.

        Raises:
            BackendUnavailableError: the place can't be reached at all.
        """

    @abstractmethod
    def watch(self, selector: Selector = Selector()) -> AsyncIterator[Changes]:  # noqa: B008 - frozen
        """Show the Workloads: first all there is (``complete``), then what changed, coalesced.

        A slow reader gets the newest state, not every step between. After a lost connection the watch goes on by itself with
        another complete step. The iterator never ends by itself; close it (`contextlib.aclosing`) when done.

        Raises:
            NotAllowedError, BackendUnavailableError: for the first step only; later trouble is waited out.
        """

    @abstractmethod
    async def submit(
        self, spec: WorkloadSpec, *, secrets: Mapping[str, str] | None = None, dry_run: bool = False
    ) -> tuple[Document, ...]:
        """Ask for a Workload to run, by its id, and return the documents that were or would be written.

        - No Workload of that id: it is QUEUED, and starts at once if it fits.
        - One that is not final, with the same content: nothing happens; the secrets that are there stay (see `connection`).
        - One that is not final, with other content: ConflictError.
        - One that is final: a new attempt (attempt + 1) with the new content and secrets; its story is kept.

        A place tries again by itself what failed (``retries``) or had to yield, with the next attempt; only a KERNEL that had to
        yield ends FAILED, ``end.preempted``, for its memory is gone. A QUEUED one keeps its place in line by that.

        ``secrets`` go into a Secret or a 0600 file and nowhere else; those that the spec names must all be there.
        ``dry_run`` checks everything and writes nothing.

        Raises:
            InvalidRequestError: it could never run here: no such interpreter or program (where that can be known), no image,
                a secret that did not come, a name the place refuses.
            InvalidRequestError: there is no such queue.
            UnsupportedError: this kind of place has no such ability, like several replicas.
            QuotaExceededError: more than the place has or its queue may ever hold, or of a kind that it lacks.
            ConflictError: as above, or the id belongs to another owner.
            NotAllowedError, BackendUnavailableError: the place's own refusals.
        """

    @abstractmethod
    async def cancel(self, id: str, *, reason: Reason | None = None, grace_s: float | None = None) -> None:
        """Ask for a Workload's end, QUEUED or running. Returns when the wish is recorded; watch for the final phase.

        Its programs get TERM, and KILL ``grace_s`` (the spec's when absent) later; meanwhile the phase stays, with Reason
        ``end.stopping``. The final phase is ``reason.final_phase``: CANCELLED for the default reason ``end.cancelled``. Twice
        is the same as once, and of a final Workload it is no error. One that is ending only to be QUEUED again, because it has to
        yield, ends for good.

        Raises:
            NotFoundError: no such Workload.
        """

    @abstractmethod
    def logs(
        self,
        id: str,
        *,
        replica: int | None = None,
        attempt: int | None = None,
        since: datetime | None = None,
        follow: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Show what the replicas said: all of them, or one; of the newest attempt, or a given one.

        Lines of the moment ``since`` itself are shown. With ``follow`` it waits for the start and ends after the last line of the
        attempt, whether another follows or not; without, it shows what there is. Of replicas that start as they fit all attempts
        since the submission count as the newest. Lines of one replica come in order. A line that starts with ``\\x1e`` and
        holds a JSON object is a report.

        Raises:
            NotFoundError: no such Workload, replica or attempt, or its log is gone (the message says why).
        """

    @abstractmethod
    def open_port(self, id: str, *, replica: int = 0, port: str) -> AbstractAsyncContextManager[Address]:
        """Make a named port of a running replica reachable from this process, for as long as the context is open.

        A kernel's connection may be opened before anything listens there.

        Raises:
            NotFoundError: no such Workload or port name, or the replica is not running.
            UnsupportedError: the place has no ports (memory).
        """

    @abstractmethod
    def hold(self, id: str) -> AbstractAsyncContextManager[None]:
        """Say "I am this Workload's client" for as long as the context is open or this process lives.

        A Workload with ``orphan_after_s`` ends (``end.orphaned``) when nobody has held it for so long. One process may hold
        what it already holds.

        Raises:
            ConflictError: another process holds it; the message names that.
            NotFoundError: no such Workload.
        """

    @abstractmethod
    async def connection(self, id: str) -> Mapping[str, str]:
        """Return the secrets of my own KERNEL, newest attempt: whoever lost a race to launch it uses the winner's keys.

        Raises:
            NotFoundError: no such KERNEL, or it has ended and its secrets are gone.
            ConflictError: it belongs to another owner.
        """

    @abstractmethod
    async def tend(self, now: datetime) -> datetime | None:
        """Do one Keeper step if the place's lock can be had, and return when to look again; None if nothing is due later.

        It admits what fits, tells those who must yield, ends what must end (orphans, starts that took too long or can't heal),
        settles what died, tries again what may be, and removes leftovers and stories older than their ttl.
        """

    @abstractmethod
    async def reprioritise(self, id: str, priority: int) -> None:
        """Give a Workload another priority; a QUEUED one moves in its line at once.

        Raises:
            NotFoundError: no such Workload.
            ConflictError: it has ended.
            InvalidRequestError: no such priority.
            UnsupportedError: the place can't change it, or not any more.
        """

    @abstractmethod
    async def story(self, id: str) -> tuple[Event, ...]:
        """Return what became of a Workload: every phase of every attempt with its time and reason, oldest first.

        An attempt that is followed by one of the place's own ends FAILED here, with its reason, though its Workload goes on. A
        reason of the same code is no news.

        Raises:
            NotFoundError: no such Workload.
        """

    @abstractmethod
    async def usage(self, since: datetime | None = None) -> tuple[Usage, ...]:
        """Return what the attempts that held something after ``since`` used, of all that the place still knows, oldest first."""

    async def apply_queues(self, queues: QueueSet, *, dry_run: bool = False) -> None:
        """Set the queues of the place, all of them at once; the next step goes by them.

        Raises:
            InvalidRequestError: a quota of a resource that the place does not have.
            ConflictError: a queue that would be gone has work; the message names it.
            UnsupportedError: its queues are not ours to set.
        """
        raise UnsupportedError(f"the queues of {self.name} are not set by jupyter-gpu")

    async def aclose(self) -> None:  # noqa: B027 - memory has nothing to close
        """Free what this process holds: connections, watches, port bridges. Nothing in the place ends by it."""

    async def __aenter__(self) -> Backend:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
