"""What the replicas of an attempt said: pod logs, followed over broken connections without losing or doubling a line."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio

from jupyter_gpu.backends.kubernetes.attempts import time_of
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.errors import BackendError, InvalidRequestError, NotFoundError
from jupyter_gpu.schema import FRAME, LogLine, Stream, report_in

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_log = logging.getLogger(__name__)

_LINE_BYTES = 1 << 20  # a longer line is shown in pieces
_OVERLAP = timedelta(seconds=1)  # sinceTime counts whole seconds, and two streams may write a little out of order
_REMEMBERED = 20_000
_BACK_OFF_S = (0.1, 5.0)


class PodLog:
    """The log of one pod, as lines with times."""

    def __init__(self, client: Client, pod: str, replica: int, attempt: int, since: datetime | None) -> None:
        self._client, self._pod, self._replica, self._attempt = client, pod, replica, attempt
        self._since, self._seen = since, _Seen()

    async def read(self, *, follow: bool) -> AsyncGenerator[LogLine]:
        """Show the lines; with ``follow`` until the pod's container has ended.

        Raises:
            NotFoundError: the pod is gone, or its node has forgotten its log.
        """
        if not follow:
            with suppress(InvalidRequestError):  # its container has not started
                async with aclosing(self._once(follow=False)) as lines:
                    async for line in lines:
                        yield line
            return
        delay, most = _BACK_OFF_S
        while True:
            has_ended = await self._has_ended()
            try:
                async with aclosing(self._once(follow=True)) as lines:
                    async for line in lines:
                        delay = _BACK_OFF_S[0]
                        yield line
                if has_ended:
                    return
            except BackendError as error:
                _log.info("the log of the pod %s is interrupted, and goes on: %s", self._pod, error)
            except NotFoundError:
                if self._seen.newest is None:
                    raise
                return
            except InvalidRequestError as error:
                if has_ended:
                    return  # it never started
                _log.debug("the log of the pod %s is not there yet: %s", self._pod, error)
            await anyio.sleep(delay)
            delay = min(delay * 2, most)

    async def _once(self, *, follow: bool) -> AsyncGenerator[LogLine]:
        query = {"timestamps": "true", "follow": "true" if follow else "false"}
        begin = max(filter(None, (self._since, self._seen.begin)), default=None)
        if begin:
            query["sinceTime"] = begin.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = self._client.path(Objects.PODS, self._pod, "log")
        self._seen.again()
        async with self._client.stream(path, query, what="get pods/log") as data, aclosing(_bounded_lines(data)) as lines:
            async for stamp, text in lines:
                time = time_of(stamp)
                if self._seen.is_new(stamp, text) and (self._since is None or time >= self._since):
                    for part in _parts(text):
                        yield self._line(time, part)

    async def _has_ended(self) -> bool:
        try:
            pod = await self._client.get(Objects.PODS, self._pod)
        except NotFoundError:
            return True
        except BackendError:
            return False
        return pod["status"].get("phase") in ("Succeeded", "Failed")

    def _line(self, time: datetime, text: str) -> LogLine:
        report = report_in(text)
        stream = Stream.REPORT if report else Stream.STDOUT
        return LogLine(
            time=time, replica=self._replica, attempt=self._attempt, stream=stream, text="" if report else text, report=report
        )


class _Seen:
    """Which of the newest lines have been shown, so that a log can be taken up again in the middle of a second."""

    def __init__(self) -> None:
        self.newest: datetime | None = None
        self._recent: deque[tuple[datetime, int]] = deque()
        self._again: Counter[tuple[datetime, int]] = Counter()

    @property
    def begin(self) -> datetime | None:
        """From when on the log must be read again."""
        return self.newest - _OVERLAP if self.newest else None

    def again(self) -> None:
        """Expect to be told again what was told before."""
        self._again = Counter(self._recent)

    def is_new(self, stamp: str, text: str) -> bool:
        """Whether a line has not been shown; it counts as shown then."""
        time = time_of(stamp)
        key = (time, hash((stamp, text)))
        if self._again:
            if self._again[key] > 0:
                self._again[key] -= 1
                return False
            if len(self._recent) == _REMEMBERED and time <= self._recent[0][0]:
                return False  # older than what is remembered of a very talkative second
        self.newest = max(time, self.newest or time)
        self._recent.append(key)
        oldest = (self.newest - _OVERLAP).replace(microsecond=0)
        while len(self._recent) > _REMEMBERED or self._recent[0][0] < oldest:
            self._recent.popleft()
        return True


async def _bounded_lines(data: AsyncIterator[bytes]) -> AsyncGenerator[tuple[str, str]]:
    """Show (time stamp, text) of each line; one that is too long comes in pieces under the same stamp."""
    rest, stamp = b"", ""
    async for chunk in data:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            stamp, text = _split(line, stamp)
            stamp_of_line, stamp = stamp, ""
            yield stamp_of_line, text
        if len(rest) > _LINE_BYTES:
            stamp, text = _split(rest, stamp)
            yield stamp, text
            rest = b""
    if rest:
        yield _split(rest, stamp)


def _split(line: bytes, stamp: str) -> tuple[str, str]:
    """Return a line's stamp and text; a later piece of a long line has only text, and the stamp of the first."""
    text = line.decode(errors="replace")
    if stamp:
        return stamp, text
    stamp, _, text = text.partition(" ")
    return stamp, text


def _parts(text: str) -> Sequence[str]:
    """Return a line as it is, or in two if a report begins in its middle, behind half a line that a program printed."""
    at = text.find(FRAME, 1)
    return (text[:at], text[at:]) if at > 0 and report_in(text[at:]) else (text,)
