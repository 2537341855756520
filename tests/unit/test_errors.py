"""The tree of errors: whole, drawn, and with words that clients can rely on."""

from __future__ import annotations

import re

import pytest

from jupyter_gpu import errors
from jupyter_gpu.errors import BackendError, JupyterGpuError, QuotaExceededError, WorkloadFailedError
from jupyter_gpu.schema import Reason


def _tree(root: type[JupyterGpuError]) -> list[type[JupyterGpuError]]:
    return [root, *(error for child in root.__subclasses__() if child.__module__ == errors.__name__ for error in _tree(child))]


ALL = _tree(JupyterGpuError)


def test_every_error_of_the_module_is_in_the_tree() -> None:
    defined = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, BaseException)}
    assert defined == set(ALL)


@pytest.mark.parametrize("error", ALL)
def test_every_name_ends_in_error(error: type[JupyterGpuError]) -> None:
    assert error.__name__.endswith("Error")


@pytest.mark.parametrize("error", ALL)
def test_every_error_says_when_it_is_raised(error: type[JupyterGpuError]) -> None:
    assert error.__doc__


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [vars(error)["code"] for error in ALL]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_the_codes_never_change() -> None:
    assert {error.__name__: error.code for error in ALL} == {
        "JupyterGpuError": "error",
        "InvalidRequestError": "invalid_request",
        "NotFoundError": "not_found",
        "ConflictError": "conflict",
        "NotAllowedError": "not_allowed",
        "QuotaExceededError": "quota_exceeded",
        "WorkloadFailedError": "workload_failed",
        "BackendError": "backend",
        "BackendUnavailableError": "backend_unavailable",
        "BackendTimeoutError": "backend_timeout",
        "UnsupportedError": "unsupported",
    }


def test_the_drawing_shows_every_error_below_its_parent() -> None:
    drawn: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"[ │├└─]*(\w+Error)\b", line):
            column = match.start(1)
            above = [(left, name) for left, name in above if left < column]
            drawn[match[1]] = above[-1][1] if above else None
            above.append((column, match[1]))
    assert drawn == {error.__name__: None if error is JupyterGpuError else error.__base__.__name__ for error in ALL}


def test_a_quota_error_says_who_can_never_give_how_much_of_what() -> None:
    error = QuotaExceededError("queue vision", "nvidia.com/gpu", asked=16, limit=8, advice="ask for 8 or fewer")
    assert str(error) == "queue vision can never give 16 nvidia.com/gpu: it has 8; ask for 8 or fewer"
    assert (error.holder, error.resource, error.asked, error.limit) == ("queue vision", "nvidia.com/gpu", 16, 8)


def test_a_quota_error_says_so_when_there_is_none() -> None:
    assert str(QuotaExceededError("this machine", "amd.com/gpu", asked=1, limit=0)).endswith("it has none")


def test_a_failed_workload_brings_its_reason() -> None:
    reason = Reason(code="end.exit_code", message="it ended with exit code 3", facts={"exit_code": 3})
    error = WorkloadFailedError("w-1", reason)
    assert str(error) == "it ended with exit code 3"
    assert (error.id, error.reason) == ("w-1", reason)


def test_what_may_be_tried_again_is_told_from_what_may_not() -> None:
    assert issubclass(errors.BackendUnavailableError, BackendError)
    assert issubclass(errors.BackendTimeoutError, BackendError)
    assert not issubclass(errors.QuotaExceededError, BackendError)
