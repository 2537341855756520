"""Foreign errors become ours here, and nowhere else: what the API server answers, and what happens on the way to it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import aiohttp

from jupyter_gpu.backends.kubernetes.mirror import ExpiredError
from jupyter_gpu.backends.kubernetes.quantities import excess_of
from jupyter_gpu.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnavailableError,
    ConflictError,
    InvalidRequestError,
    JupyterGpuError,
    NotAllowedError,
    NotFoundError,
    QuotaExceededError,
)

# k8s.io/apiserver, pkg/endpoints/handlers/responsewriters/errors.go, ``forbiddenMessage``
_FORBIDDEN = re.compile(
    r'cannot (?P<verb>[\w*]+) resource "(?P<resource>[^"]+)"(?: in API group "(?P<group>[^"]*)")?'
    r'(?: in the namespace "(?P<namespace>[^"]+)"| at the cluster scope)?'
)
_PASSING_STATUS = (429, 500, 502, 503)
_TIMEOUT_STATUS = (408, 504)


class MissingRightError(NotAllowedError):
    """The account may not do one certain thing."""

    def __init__(self, account: str, right: str, where: str) -> None:
        super().__init__(f"{account} may not {right} {where}; an administrator can allow it (the role jupyter-gpu-user has it)")
        self.right = right


def refusal(status: int, body: bytes, what: str) -> JupyterGpuError:
    """Return our error for an answer of the API server that is no success.

    Args:
        status: of HTTP.
        body: usually a ``Status`` object of Kubernetes.
        what: what was asked, for the message: ``create jobs``.
    """
    answer = _answer(body)
    words = str(answer.get("message") or body[:300].decode(errors="replace") or f"HTTP {status}")
    if status == 401 or (status == 403 and 'User "system:anonymous"' in words):
        return NotAllowedError(
            f"the cluster does not accept this login (could not {what}): the token or certificate has expired or is wrong; "
            "log in to the cluster again, or renew the kubeconfig"
        )
    if status == 403:
        return _forbidden(words, what)
    if status == 404:
        return _not_found(answer, words)
    if status == 409:
        return ConflictError(words)
    if status == 410:
        return ExpiredError(words)
    if status in (400, 413, 422):
        return InvalidRequestError(f"the cluster refuses to {what}: {words}")
    if status in _TIMEOUT_STATUS:
        return BackendTimeoutError(f"the API server did not {what} in time: {words}")
    if status in _PASSING_STATUS:
        return BackendUnavailableError(f"the API server can't {what} now: {words}")
    return BackendError(f"the API server answered {status} when asked to {what}: {words}")


def failure(error: Exception, host: str, what: str) -> BackendError:
    """Return our error for a request that got no answer."""
    if isinstance(error, TimeoutError):
        return BackendTimeoutError(
            f"{host} did not answer in time (could not {what}); is the cluster busy, or a firewall between?"
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return BackendUnavailableError(f"{host} shows a certificate that is not trusted here: {error}; check the kubeconfig")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return BackendUnavailableError(f"the name of {host} can't be resolved ({error}); check the kubeconfig and the network")
    if isinstance(error, aiohttp.ClientConnectorError):
        return BackendUnavailableError(
            f"{host} can't be reached: {error.strerror or error}; is the cluster up, and a VPN needed?"
        )
    return BackendUnavailableError(f"the connection to {host} broke (could not {what}): {error or type(error).__name__}")


def bad_configuration(error: Exception, where: str) -> InvalidRequestError:
    """Return our error for a kubeconfig that can't be used."""
    return InvalidRequestError(f"the cluster configuration {where} can't be used: {error}")


def _answer(body: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _forbidden(words: str, what: str) -> JupyterGpuError:
    if excess := excess_of(words):
        return QuotaExceededError(
            f"the quota {excess.quota}",
            excess.resource,
            asked=excess.asked,
            limit=excess.limit,
            advice=f"{excess.used:g} are used",
        )
    if match := _FORBIDDEN.search(words):
        account = (re.search(r'User "([^"]+)"', words) or ["", "this account"])[1]
        resource = f"{match['resource']}.{match['group']}" if match["group"] else match["resource"]
        where = f"in the namespace {match['namespace']}" if match["namespace"] else "in the cluster as a whole"
        return MissingRightError(account, f"{match['verb']} {resource}", where)
    if "because it is being terminated" in words:
        return NotFoundError(f"the namespace is being deleted: {words}")
    if "forbidden: User" in words or words == "HTTP 403":
        return NotAllowedError(f"this account may not {what}: {words}")
    return InvalidRequestError(f"the cluster's rules refuse to {what}: {words}")


def _not_found(answer: Mapping[str, Any], words: str) -> NotFoundError:
    if (answer.get("details") or {}).get("kind") == "namespaces":
        return NotFoundError(f"{words}; make the namespace, or name another in the configuration")
    return NotFoundError(words)
