"""Foreign words and bytes read: errors, amounts, logs, lines."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from jupyter_gpu.backends.kubernetes import translation
from jupyter_gpu.backends.kubernetes.logs import _bounded_lines, _parts, _Seen
from jupyter_gpu.backends.kubernetes.mirror import ExpiredError, lines_of
from jupyter_gpu.backends.kubernetes.quantities import excess_of, quantity
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

FORBIDDEN = 'jobs.batch is forbidden: User "ana" cannot create resource "jobs" in API group "batch" in the namespace "team-a"'
NODES = 'nodes is forbidden: User "ana" cannot list resource "nodes" in API group "" at the cluster scope'
QUOTA = "exceeded quota: q, requested: count/jobs.batch=1, used: count/jobs.batch=5, limited: count/jobs.batch=5"


def refusal(code: int, message: str, **more: Any) -> JupyterGpuError:
    return translation.refusal(code, json.dumps({"kind": "Status", "message": message, **more}).encode(), "create jobs")


@pytest.mark.parametrize(
    ("status", "message", "error", "words"),
    [
        (401, "Unauthorized", NotAllowedError, "log in to the cluster again"),
        (403, FORBIDDEN.replace("ana", "system:anonymous"), NotAllowedError, "log in to the cluster again"),
        (403, FORBIDDEN, NotAllowedError, "ana may not create jobs.batch in the namespace team-a"),
        (403, NODES, NotAllowedError, "ana may not list nodes in the cluster as a whole"),
        (403, QUOTA, QuotaExceededError, "the quota q can never give 1 count/jobs.batch: it has 5; 5 are used"),
        (403, 'pods "w" is forbidden: violates PodSecurity "restricted"', InvalidRequestError, "violates PodSecurity"),
        (403, "unable to create new content in namespace x because it is being terminated", NotFoundError, "being deleted"),
        (404, 'jobs.batch "w" not found', NotFoundError, 'jobs.batch "w" not found'),
        (409, 'jobs.batch "w" already exists', ConflictError, "already exists"),
        (410, "too old resource version: 1 (9)", ExpiredError, "too old"),
        (413, "too large", InvalidRequestError, "refuses to create jobs: too large"),
        (422, 'Job.batch "w" is invalid: spec: Invalid value', InvalidRequestError, "Invalid value"),
        (429, "too many requests", BackendUnavailableError, "now"),
        (500, "etcdserver: leader changed", BackendUnavailableError, "leader changed"),
        (503, "apiserver is shutting down", BackendUnavailableError, "shutting down"),
        (504, "Timeout: request did not complete", BackendTimeoutError, "in time"),
        (418, "teapot", BackendError, "418"),
    ],
)
def test_an_answer_of_the_api_server_becomes_our_error(status: int, message: str, error: type, words: str) -> None:
    translated = refusal(status, message)
    assert type(translated) is error or isinstance(translated, error)
    assert words in str(translated)


def test_a_missing_namespace_is_told_with_what_to_do() -> None:
    assert "make the namespace" in str(refusal(404, 'namespaces "x" not found', details={"kind": "namespaces"}))


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"[]", b"null"])
def test_an_answer_that_is_no_status_is_no_traceback(body: bytes) -> None:
    assert isinstance(translation.refusal(502, body, "list pods"), BackendUnavailableError)
    assert isinstance(translation.refusal(403, body, "list pods"), JupyterGpuError)


def test_every_error_of_the_way_there_becomes_ours() -> None:
    """Walks aiohttp for new ones."""
    errors = [thing for thing in vars(aiohttp).values() if isinstance(thing, type) and issubclass(thing, aiohttp.ClientError)]
    assert len(errors) > 15
    for error in errors:
        spoken = type(error.__name__, (error,), {"__str__": lambda self: "words", "__init__": lambda self: None})
        assert isinstance(translation.failure(spoken(), "https://c:6443", "list pods"), BackendError)
    assert isinstance(translation.failure(TimeoutError(), "https://c:6443", "list pods"), BackendTimeoutError)


@pytest.mark.parametrize(("text", "number"), [("2", 2), ("500m", 0.5), ("4Gi", 4 * 2**30), ("1k", 1000), ("0", 0)])
def test_amounts_are_read(text: str, number: float) -> None:
    assert quantity(text) == number


def test_of_several_resources_over_a_quota_the_hopeless_one_is_told() -> None:
    numbers = "requested: pods=1,requests.memory=8Gi, used: pods=9,requests.memory=0, limited: pods=9,requests.memory=4Gi"
    excess = excess_of(f"exceeded quota: q, {numbers}")
    assert excess
    assert (excess.quota, excess.resource, excess.is_for_ever) == ("q", "requests.memory", True)
    assert excess_of("something else") is None


async def chunks(*data: bytes) -> Any:
    for chunk in data:
        yield chunk


async def test_lines_are_lines_however_they_come() -> None:
    assert [line async for line in lines_of(chunks(b"a", b"b\nc\n", b"", b"\nd", b"e\nhalf"))] == [b"ab", b"c", b"", b"de"]


async def test_a_line_without_end_is_shown_in_pieces() -> None:
    long = b"x" * (3 << 20)
    pieces = [piece async for piece in _bounded_lines(chunks(b"T1 " + long[: 1 << 20], long[1 << 20 :], b"\nT2 b\nT3 c"))]
    assert "".join(text for stamp, text in pieces if stamp == "T1") == long.decode()
    assert pieces[-2:] == [("T2", "b"), ("T3", "c")]


def test_a_report_behind_half_a_line_is_a_report() -> None:
    assert _parts('50% done\x1e{"report": "end"}') == ("50% done", '\x1e{"report": "end"}')
    assert _parts("no \x1e report") == ("no \x1e report",)
    assert _parts('\x1e{"report": "end"}') == ('\x1e{"report": "end"}',)


def stamp(second: float) -> str:
    return (datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


def test_a_log_that_is_read_again_shows_no_line_twice_and_loses_none() -> None:
    lines = [(stamp(number // 3 * 0.1), f"line {number % 5}") for number in range(300)]
    for cut in range(1, 300, 7):
        seen = _Seen()
        shown = [line for line in lines[:cut] if seen.is_new(*line)]
        seen.again()
        assert seen.begin
        begin = seen.begin.replace(microsecond=0)
        again = [line for line in lines if datetime.fromisoformat(line[0]) >= begin]
        assert shown + [line for line in again if seen.is_new(*line)] == lines


def test_what_is_remembered_of_a_log_is_bounded() -> None:
    seen = _Seen()
    for number in range(100_000):
        seen.is_new(stamp(number / 1_000_000), f"line {number}")
    assert len(seen._recent) <= 20_000
    seen.again()
    assert not seen.is_new(stamp(0), "line 0")
    assert not seen.is_new(stamp(99_999 / 1_000_000), "line 99999")
    assert seen.is_new(stamp(1), "line 100000")
