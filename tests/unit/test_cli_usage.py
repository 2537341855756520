"""``jupyter gpu usage``: who used what."""

from __future__ import annotations

from datetime import datetime

import pytest

from jupyter_gpu.errors import InvalidRequestError
from tests.builders import a_workload, program
from tests.homes import VirtualPlace


@pytest.fixture
def used(virtual: VirtualPlace) -> VirtualPlace:
    """A place where two workloads of two queues held devices for an hour each, and one had none."""
    virtual.apply("queues: {day: {quotas: {nvidia.com/gpu: {nominal: 4}}}, night: {}}")
    hour = program(seconds=3600)
    virtual.submit(
        a_workload("w-1", gpus=2, queue="day", name="train", command=hour),
        a_workload("w-2", gpus=1, queue="day", command=hour),
        a_workload("w-3", queue="night", command=hour),
    )
    virtual.backend.advance(2 * 3600)
    return virtual


def test_a_row_is_for_a_queue_unless_said_otherwise(used: VirtualPlace) -> None:
    result = used.cli("usage")
    assert (result.exit_code, result.err) == (0, "")
    rows = [line.split() for line in result.out.splitlines()[1:]]
    assert rows[0][:3] == ["QUEUE", "DEVICE", "WORKLOADS"]
    assert rows[1][:4] == ["day", "nvidia.com/gpu", "2", "3.00"]
    assert rows[2][:4] == ["night", "-", "1", "-"]


def test_a_row_may_be_for_an_owner_or_a_workload(used: VirtualPlace) -> None:
    assert {one["name"] for one in used.cli("usage", "--by", "owner", "--json").data["usage"]} == {"me"}
    by_workload = used.cli("usage", "--by", "workload", "--json").data["usage"]
    assert {(one["id"], one["name"]) for one in by_workload} == {("w-1", "train"), ("w-2", "w-2"), ("w-3", "w-3")}
    assert "train (w-1)" in used.cli("usage", "--by", "workload").out


def test_as_json_each_row_has_its_figures(used: VirtualPlace) -> None:
    data = used.cli("usage", "--json", "--since", "2029-12-31T00:00:00Z").data
    assert data["place"] == "local" and data["by"] == "queue" and data["since"] == "2029-12-31T00:00:00.000Z"
    day = data["usage"][0]
    assert day["resource"] == "nvidia.com/gpu" and day["workloads"] == 2
    assert day["device_seconds"] == pytest.approx(3 * 3600, rel=0.01)
    assert day["idle_share"] is None  # nobody measured


def test_a_period_in_which_nothing_was_used_is_said_so(used: VirtualPlace) -> None:
    assert "nothing was used in local since 2999-01-01" in used.cli("usage", "--since", "2999-01-01").out


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01", "tomorrow", ""])
def test_a_time_that_no_calendar_has_is_refused(used: VirtualPlace, since: str) -> None:
    result = used.cli("usage", "--since", since)
    assert result.exit_code == 2 and f"{since!r} is no time; write 10m" in result.err


def test_python_asks_the_same(used: VirtualPlace) -> None:
    with used.home.gpu() as gpu:
        assert [one.name for one in gpu.usage()] == ["day", "night"]
        with pytest.raises(InvalidRequestError, match="since: a time needs its zone"):
            gpu.usage(since=datetime(2030, 1, 1))
        with pytest.raises(InvalidRequestError, match="by: must be one of 'queue', 'owner' or 'workload'"):
            gpu.usage(by="team")  # type: ignore[arg-type]
