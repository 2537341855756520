"""The logs of all replicas of an attempt: which pods they are, when they start, and all of them in one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from jupyter_gpu.backends.kubernetes.attempts import Attempt, Thing, has_started, rank_of
from jupyter_gpu.backends.kubernetes.logs import PodLog
from jupyter_gpu.backends.kubernetes.phases import status_of
from jupyter_gpu.backends.kubernetes.tasks import Tasks
from jupyter_gpu.backends.kubernetes.watch import Reflector
from jupyter_gpu.errors import JupyterGpuError, NotFoundError
from jupyter_gpu.names import object_name
from jupyter_gpu.schema import LogLine, Selector

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_BUFFERED_LINES = 256


class AttemptLog:
    """The log of an attempt's replicas."""

    def __init__(self, client: Client, attempt: Attempt, ranks: Iterable[int], since: datetime | None) -> None:
        self._client, self._attempt, self._ranks, self._since = client, attempt, tuple(ranks), since

    async def read(self) -> AsyncGenerator[LogLine]:
        """Show what there is, replica by replica.

        Raises:
            NotFoundError: it is over, and its pods are gone.
        """
        pods = {rank: pod for rank in self._ranks if (pod := _started_pod(self._attempt, rank))}
        if not pods and status_of(self._attempt).phase.is_final and not self._attempt.never_ran:
            raise self._gone()
        for rank, pod in pods.items():
            async with aclosing(self._pod_log(pod, rank).read(follow=False)) as lines:
                async for line in lines:
                    yield _explained(line, self._attempt)

    async def follow(self, reflector: Reflector) -> AsyncGenerator[LogLine]:
        """Show all that is said, as it is said, from the start to the end.

        Raises:
            NotFoundError: it is over, and its pods are gone.
        """
        if len(self._ranks) == 1:
            async with aclosing(self._follow_one(reflector, self._ranks[0])) as lines:
                async for line in lines:
                    yield line
            return
        send, receive = anyio.create_memory_object_stream[LogLine](_BUFFERED_LINES)
        tasks, failures = Tasks(), list[JupyterGpuError]()

        async def pass_on(rank: int) -> None:
            async with send.clone() as sender, aclosing(self._follow_one(reflector, rank)) as lines:
                try:
                    async for line in lines:
                        await sender.send(line)
                except JupyterGpuError as error:
                    failures.append(error)

        try:
            for rank in self._ranks:
                tasks.start(pass_on(rank))
            await anyio.lowlevel.checkpoint()  # each has its clone now
            send.close()
            async for line in receive:
                yield line
        finally:
            await tasks.aclose()
            receive.close()
        if failures:
            raise failures[0]

    async def _follow_one(self, reflector: Reflector, rank: int) -> AsyncGenerator[LogLine]:
        pod = await self._wait_for_start(reflector, rank)
        if pod is None:
            return
        async with aclosing(self._pod_log(pod, rank).read(follow=True)) as lines:
            async for line in lines:
                yield _explained(line, reflector.attempt(object_name(self._attempt.id), self._attempt.number) or self._attempt)

    async def _wait_for_start(self, reflector: Reflector, rank: int) -> Thing | None:
        """Return a replica's pod once its program has started; None if it is ended before that."""
        selector, name = Selector(ids=frozenset({self._attempt.id})), object_name(self._attempt.id)
        async with aclosing(reflector.read(selector)) as steps:
            async for _ in steps:
                attempt = reflector.attempt(name, self._attempt.number)
                if attempt is None:
                    raise self._gone()
                if pod := _started_pod(attempt, rank):
                    return pod
                if status_of(attempt).phase.is_final:
                    if attempt.never_ran:
                        return None
                    raise self._gone()
        raise AssertionError("unreachable")

    def _pod_log(self, pod: Thing, rank: int) -> PodLog:
        return PodLog(self._client, pod["metadata"]["name"], rank, self._attempt.number, self._since)

    def _gone(self) -> NotFoundError:
        what = f"the log of {self._attempt.id!r}, attempt {self._attempt.number}"
        return NotFoundError(f"{what} is gone: it goes with the pod, and that was removed")


def _explained(line: LogLine, attempt: Attempt) -> LogLine:
    """Return a line of a log; a replica that only knows that it was told to end is told why."""
    if not attempt.wish or not line.report or (line.report.get("report"), line.report.get("code")) != ("end", "end.terminated"):
        return line
    return line.model_copy(update={"report": {**line.report, "code": attempt.wish.code, "message": attempt.wish.message}})


def _started_pod(attempt: Attempt, rank: int) -> Thing | None:
    """Return a replica's pod if its program runs or has run."""
    return next((pod for pod in attempt.pods if rank_of(pod) == rank and has_started(pod)), None)


def running_pod(attempt: Attempt, rank: int) -> Thing | None:
    """Return a replica's pod if it runs and has an address."""
    for pod in attempt.pods:
        status = pod.get("status") or {}
        runs = any("running" in (one.get("state") or ()) for one in status.get("containerStatuses") or ())
        if rank_of(pod) == rank and runs and status.get("podIP") and not pod["metadata"].get("deletionTimestamp"):
            return pod
    return None
