"""The objects of one kind, kept the same as the API server's: list, then watch.

Source: "Efficient detection of changes" in the API concepts of Kubernetes (list, watch from its resourceVersion, bookmarks,
410 means list again), and client-go's Reflector for the backing off.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from jupyter_gpu.backends.kubernetes.attempts import Thing
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.errors import BackendError, JupyterGpuError

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_log = logging.getLogger(__name__)

_WATCH_S = 290  # the API server ends a watch after so long, and it goes on with the next
_IDLE_S = 100.0  # bookmarks come every minute or so: silence beyond that is a dead connection
_SHORT_S = 1.0  # a watch that ends sooner is refused in effect
_BACK_OFF_S = (0.2, 10.0)


class ExpiredError(BackendError):
    """A resourceVersion is too old: list again."""


class Mirror:
    """The objects of one kind, kept the same as the API server's."""

    def __init__(
        self,
        client: Client,
        kind: Objects,
        query: Mapping[str, str],
        trim: Callable[[Thing], Thing],
        changed: Callable[[Thing], None],
    ) -> None:
        self._client, self._kind, self._query, self._trim, self._changed = client, kind, dict(query), trim, changed
        self._version: str | None = None
        self._was_lost = False
        self.objects: dict[str, Thing] = {}
        self.synced = anyio.Event()
        self.error: JupyterGpuError | None = None
        self.on_relist: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """List, watch, and start again for ever; an error before the first watch has begun ends it (see ``error``)."""
        least, most = _BACK_OFF_S
        delay = least
        while True:
            try:
                if self._version is None:
                    await self._list()
                begin = time.monotonic()
                await self._follow()
                delay = least if time.monotonic() - begin > _SHORT_S else await self._pause(delay, most)
            except JupyterGpuError as error:
                if not self.synced.is_set() and not isinstance(error, ExpiredError):
                    self.error = error
                    self.synced.set()
                    return
                delay = await self._wait_out(error, delay, most)

    async def _wait_out(self, error: JupyterGpuError, delay: float, most: float) -> float:
        self._was_lost = True
        if isinstance(error, ExpiredError):
            self._version = None
            return delay
        _log.info("the watch of %s is interrupted, and goes on in %.1f s: %s", self._kind.plural, delay, error)
        return await self._pause(delay, most)

    async def _pause(self, delay: float, most: float) -> float:
        await anyio.sleep(delay * random.uniform(0.5, 1.0))
        return min(delay * 2, most)

    async def _list(self) -> None:
        found: dict[str, Thing] = {}
        version = ""
        async for page, version in self._client.pages(self._kind, **self._query):  # noqa: B007 - the last one's is meant
            for thing in page:
                found[thing["metadata"]["name"]] = self._trim(thing)
            await checkpoint()
        gone = [thing for name, thing in self.objects.items() if name not in found]
        self.objects, self._version = found, version
        for touched in (*gone, *found.values()):
            self._changed(touched)

    def _back(self) -> None:
        if self._was_lost:
            self._was_lost = False
            self.on_relist()
        self.synced.set()

    async def _follow(self) -> None:
        query = {**self._query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_S)}
        path = self._client.path(self._kind)
        what = f"watch {self._kind.plural}"
        async with self._client.stream(path, query | {"resourceVersion": self._version or ""}, what=what, idle_s=_IDLE_S) as data:
            self._back()
            async for line in lines_of(data):
                self._take(json.loads(line))

    def _take(self, event: Mapping[str, Any]) -> None:
        thing = event["object"]
        if event["type"] == "ERROR":
            raise self._client.refusal(thing, f"watch {self._kind.plural}")
        self._version = thing["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return
        if event["type"] == "DELETED":
            self.objects.pop(thing["metadata"]["name"], None)
            self._changed(thing)
        else:
            self.observe(thing)

    def observe(self, thing: Thing) -> None:
        """Take an object as the API server has shown it; an older version is passed over."""
        name = thing["metadata"]["name"]
        known = self.objects.get(name)
        if known and known["metadata"]["uid"] == thing["metadata"]["uid"] and _is_newer(_version_of(known), _version_of(thing)):
            return
        self.objects[name] = self._trim(thing)
        self._changed(thing)

    def expect(self, thing: Thing) -> None:
        """Take an object that we have just written; if the watch is already beyond that, it knows better."""
        if thing["metadata"]["name"] in self.objects or not _is_newer(self._version or "", _version_of(thing)):
            self.observe(thing)


async def lines_of(data: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Show the lines of a stream of bytes, of any length, without their ends; half a line at the end is dropped."""
    parts: list[bytes] = []
    async for chunk in data:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join((*parts, line))
            parts = []
        if rest:
            parts.append(rest)


def _version_of(thing: Thing) -> str:
    return str(thing["metadata"]["resourceVersion"])


def _is_newer(one: str, two: str) -> bool:
    """Whether one resourceVersion is newer than another.

    Source: KEP-5504, "Comparable Resource Version": they are numbers that grow; anything else is taken as unknown.
    """
    return one.isdecimal() and two.isdecimal() and int(one) > int(two)
