"""The way to the API server: the official client's configuration, login and connections; plain documents on top.

The client's typed classes are not used: we write and read documents, and checking each object of a list of thousands against
its whole schema would cost seconds. This module loads `kubernetes`, so it is imported on first use and in a thread.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
from yarl import URL

from jupyter_gpu.backends.kubernetes import translation
from jupyter_gpu.backends.kubernetes.login import Login, log_in
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.errors import JupyterGpuError, NotFoundError
from jupyter_gpu.schema import KubernetesSettings

_CONNECT_S = 10.0
_LOGIN_AGAIN_AFTER_S = 10.0  # at most so often is the configuration read again for a login that was refused
_PAGE = 250  # a larger answer would keep the event loop for long while it is read
_CLOCK_TOLERANCE = timedelta(seconds=2)  # the API server tells the time in whole seconds

MERGE_PATCH = "application/merge-patch+json"


class Client:
    """The API server, as this account reaches it."""

    def __init__(self, settings: KubernetesSettings, login: Login) -> None:
        self._settings, self._login = settings, login
        self._old_logins: list[Login] = []
        self._lock = anyio.Lock()
        self.clock_offset = timedelta(0)
        self.namespace = settings.namespace or login.namespace
        self.host, self.in_cluster = login.host, login.in_cluster

    @classmethod
    async def connect(cls, settings: KubernetesSettings) -> Client:
        """Read the configuration; the first request is what really connects.

        Raises:
            InvalidRequestError: there is no configuration, or it can't be used.
        """
        return cls(settings, await anyio.to_thread.run_sync(log_in, settings))

    async def aclose(self) -> None:
        """Close all connections."""
        for login in (*self._old_logins, self._login):
            await login.api.rest_client.close()

    def now(self) -> datetime:
        """Return the time by the API server's clock, which all clients share; finer than seconds it is this machine's."""
        return datetime.now(UTC) + self.clock_offset

    def path(self, kind: Objects, name: str = "", sub: str = "") -> str:
        """Return the path of a kind's objects, of one of them, or of a part of that."""
        parts = (kind.value.format(namespace=self.namespace), name, sub)
        return "/".join(part for part in parts if part)

    async def get(self, kind: Objects, name: str) -> dict[str, Any]:
        """Return an object."""
        return await self.call("GET", self.path(kind, name), what=f"get {kind.plural}")

    async def create(self, kind: Objects, document: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object and return it as it was stored."""
        query = {"dryRun": "All"} if dry_run else {}
        return await self.call("POST", self.path(kind), query=query, body=document, what=f"create {kind.plural}")

    async def patch(self, kind: Objects, name: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Change an object by a merge patch (RFC 7386) and return it; a resourceVersion in it makes it conditional."""
        return await self.call("PATCH", self.path(kind, name), body=change, what=f"patch {kind.plural}")

    async def delete(self, kind: Objects, name: str, **options: Any) -> bool:
        """Delete an object; returns whether there was one (of these preconditions)."""
        try:
            await self.call("DELETE", self.path(kind, name), body=options, what=f"delete {kind.plural}")
        except NotFoundError:
            return False
        return True

    async def list_all(
        self, kind: Objects, *, accept: str = "application/json", **query: str
    ) -> tuple[list[dict[str, Any]], str]:
        """Return all objects of a kind, fetched in pages, and the resourceVersion they are of."""
        items: list[dict[str, Any]] = []
        async for page, version in self.pages(kind, accept=accept, **query):  # noqa: B007 - the last one's is meant
            items.extend(page)
        return items, version

    async def pages(
        self, kind: Objects, *, accept: str = "application/json", **query: str
    ) -> AsyncGenerator[tuple[list[dict[str, Any]], str]]:
        """Show the objects of a kind page by page, with the resourceVersion they are of."""
        position: dict[str, str] = {}
        while True:
            asked = {"limit": str(_PAGE), **query, **position}
            page = await self.call("GET", self.path(kind), query=asked, accept=accept, what=f"list {kind.plural}")
            metadata = page["metadata"]
            yield page["items"] or [], metadata["resourceVersion"]
            if not metadata.get("continue"):
                return
            position = {"continue": metadata["continue"]}

    async def call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = "application/json",
    ) -> dict[str, Any]:
        """Make one call and return the answer.

        A connection that broke under the request is tried once more: every call of ours may be made twice.

        Raises:
            JupyterGpuError: the one that `translation` makes of the refusal or failure.
        """
        timeout = aiohttp.ClientTimeout(total=self._settings.request_timeout_s, sock_connect=_CONNECT_S)
        for is_last in (False, True):
            try:
                async with self._opened(method, path, what, query, body, accept, timeout) as response:
                    answer: dict[str, Any] = json.loads(await response.read())
                    return answer
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError) as error:
                if is_last or isinstance(error, aiohttp.ClientConnectorError):
                    raise translation.failure(error, self.host, what) from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise translation.failure(error, self.host, what) from error
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, what: str, idle_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an answer that goes on, and give its bytes as they come; no news for ``idle_s`` is a failure."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=idle_s)
        try:
            async with self._opened("GET", path, what, query, None, "*/*", timeout) as response:
                if response.connection and response.connection.transport:
                    _watch_over(response.connection.transport.get_extra_info("socket"))
                yield response.content.iter_any()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise translation.failure(error, self.host, what) from error

    @asynccontextmanager
    async def websocket(self, path: str, query: Mapping[str, str], protocol: str, *, what: str) -> AsyncIterator[Any]:
        """Open a WebSocket to the API server (an `aiohttp.ClientWebSocketResponse`)."""
        login = self._login
        configuration = login.api.configuration
        try:
            async with login.api.rest_client.pool_manager.ws_connect(
                _url(self.host, path, query),
                protocols=(protocol,),
                headers=await _credentials(configuration),
                proxy=configuration.proxy,
                server_hostname=configuration.tls_server_name,
                max_msg_size=0,
            ) as opened:
                _watch_over(opened.get_extra_info("socket"))
                yield opened
        except aiohttp.WSServerHandshakeError as error:
            raise translation.refusal(error.status, b"", what) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise translation.failure(error, self.host, what) from error

    @asynccontextmanager
    async def _opened(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        accept: str,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open the answer to a request that succeeded; log in again once if the login has run out."""
        for is_last in (False, True):
            login = self._login
            headers = {"Accept": accept, **await _credentials(login.api.configuration)}
            if method == "PATCH":
                headers["Content-Type"] = MERGE_PATCH
            sent = await login.api.rest_client.request(
                method, _url(self.host, path, query), headers=headers, body=body, _request_timeout=timeout
            )
            response: aiohttp.ClientResponse = sent.response
            async with response:
                self._read_clock(response)
                if response.ok:
                    yield response
                    return
                answer = await response.read()
            if response.status != 401 or is_last or not await self._log_in_again(login):
                raise translation.refusal(response.status, answer, what)

    def refusal(self, status: Mapping[str, Any], what: str) -> JupyterGpuError:
        """Return the error for a ``Status`` object that came in the middle of a stream."""
        return translation.refusal(status.get("code", 500), json.dumps(status).encode(), what)

    async def _log_in_again(self, refused: Login) -> bool:
        """Read the configuration once more, for tokens in files and of login programs run out; returns whether to try again."""
        async with self._lock:
            if self._login is not refused:
                return True
            if time.monotonic() - refused.at < _LOGIN_AGAIN_AFTER_S:
                return False
            self._login = await anyio.to_thread.run_sync(log_in, self._settings)
            self._old_logins.append(refused)
            return True

    def _read_clock(self, response: aiohttp.ClientResponse) -> None:
        try:
            offset = parsedate_to_datetime(response.headers["Date"]) - datetime.now(UTC)
        except (KeyError, ValueError):
            return
        self.clock_offset = offset if abs(offset) > _CLOCK_TOLERANCE else timedelta(0)


def _watch_over(connection: socket.socket | None) -> None:
    """Let the system notice within a minute that the other end of a quiet connection is gone."""
    options = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options:
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _url(host: str, path: str, query: Mapping[str, str] | None) -> URL:
    return URL(host + path).update_query(dict(query or {}))


async def _credentials(configuration: Any) -> dict[str, str]:
    token = (await configuration.auth_settings()).get("BearerToken")
    return {token["key"]: token["value"]} if token else {}
