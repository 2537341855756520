"""``jupyter gpu why``: why something waits or has ended, and whether it would start."""

from __future__ import annotations

import pytest

from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import WorkloadSpec
from tests.builders import a_workload, program
from tests.homes import VirtualPlace

_GPU = "nvidia.com/gpu"


def _limited(id: str, gpus: int, seconds: float, **changes: object) -> WorkloadSpec:
    return a_workload(id, gpus=gpus, max_runtime_s=seconds, command=program(seconds=seconds * 2), **changes)


# ---- before there is anything


def test_what_would_start_now_is_said_so(virtual: VirtualPlace) -> None:
    result = virtual.cli("why", "--gpus", "2")
    assert (result.exit_code, result.err) == (0, "")
    assert "it starts now with 2 GPUs" in result.out


def test_what_would_wait_is_told_after_whom_for_how_long_and_with_what_size_not(virtual: VirtualPlace) -> None:
    virtual.submit(_limited("w-1", 3, 3600, name="train"), _limited("w-2", 2, 1800, name="sweep"))
    result = virtual.cli("why", "--gpus", "2")
    assert result.exit_code == 0  # an answer is an answer
    for words in ("1 GPU free", "gpus=1 starts now", "second in line", "train (w-1)", "sweep (w-2)", "number 2 of its queue"):
        assert words in result.out
    forecast = virtual.cli("why", "--gpus", "2", "--json").data["forecast"]
    assert forecast["starts_now"] is False and forecast["basis"] == "exact" and forecast["smaller_gpus"] == 1
    assert [one["id"] for one in forecast["ahead"]] == ["w-2"] and [one["id"] for one in forecast["holders"]] == ["w-1"]
    assert 0 < forecast["within_s"] <= 3600 + 1800


def test_whoever_is_in_the_way_is_named_by_the_start_of_its_id(virtual: VirtualPlace) -> None:
    id = "2e45a8f6-ce44-49cb-9a82-442b574bf15b"
    virtual.submit(a_workload(id, gpus=4, name="gpu"))
    assert "gpu (2e45a8f6)  " in virtual.cli("why", "--gpus", "1").out


def test_where_nobody_has_a_limit_no_time_is_told(virtual: VirtualPlace) -> None:
    virtual.submit(a_workload("w-1", gpus=4))
    assert "can't be told" in virtual.cli("why", "--gpus", "1").out


def test_asking_creates_nothing(virtual: VirtualPlace) -> None:
    virtual.cli("why", "--gpus", "2")
    assert virtual.cli("list", "--all", "--json").data["workloads"] == []


def test_all_of_a_wish_is_heard(virtual: VirtualPlace) -> None:
    virtual.apply("queues: {night: {quotas: {nvidia.com/gpu: {nominal: 4}}}}")
    words = ["--gpus", "1", "--queue", "night", "--priority", "-3", "--replicas", "2", "--as-they-fit", "--max-runtime", "1h30m"]
    spec = virtual.cli("why", *words, "--cpus", "0.5", "--memory", "2GiB", "--accelerator", _GPU, "--json").data["spec"]
    assert (spec["queue"], spec["priority"], spec["replicas"], spec["start"]) == ("night", -3, 2, "as_they_fit")
    assert spec["max_runtime_s"] == 5400 and spec["resources"]["cpus"] == 0.5 and spec["resources"]["memory_bytes"] == 2**31


def test_nothing_is_something_to_ask_for_too(virtual: VirtualPlace) -> None:
    virtual.home.configure(profiles={"big": {"resources": {"gpus": 1}, "priority": 7}})
    assert virtual.cli("why", "--gpus", "0", "--json").data["spec"]["resources"]["gpus"] == 0
    assert virtual.cli("why", "--profile", "big", "--priority", "0", "--json").data["spec"]["priority"] == 0


def test_a_profile_is_asked_about_as_the_kernel_it_would_be(virtual: VirtualPlace) -> None:
    virtual.home.configure(profiles={"big": {"resources": {"gpus": 2, "cpus": 3}, "priority": 7, "bounds": {"max_gpus": 4}}})
    spec = virtual.cli("why", "--profile", "big", "--gpus", "3", "--json").data["spec"]
    assert spec["kind"] == "kernel" and spec["profile"] == "big" and spec["priority"] == 7
    assert spec["resources"]["gpus"] == 3 and spec["resources"]["cpus"] == 3
    refused = virtual.cli("why", "--profile", "big", "--gpus", "5")
    assert refused.exit_code == 2 and "gpus: 5 is more than profile 'big' allows (4)" in refused.err


@pytest.mark.parametrize(
    ("words", "exit_code", "says"),
    [
        ((), 2, "a WORKLOAD, or a size like --gpus 2, or a --profile"),
        (("w-1", "--gpus", "2"), 2, "--gpus is for something that is not there yet"),
        (("w-1", "--priority", "0"), 2, "--priority is for something that is not there yet"),
        (("--profile", "gpu", "--replicas", "2"), 2, "kernel is one program"),
        (("--profile", "gpu", "--as-they-fit"), 2, "kernel is one program"),
        (("--product", "x" * 64), 2, "product: must have at most 63 characters"),
        (("nobody",), 3, "no workload 'nobody'"),
        (("--gpus", "-1"), 2, "-1 is not in the range"),
        (("--gpus", "1", "--queue", "moon"), 2, "no queue 'moon'; there are: default"),
        (("--memory", "4XB"), 2, "memory_bytes: '4XB' is no size in bytes"),
        (("--accelerator", "gpu"), 2, "'gpu' is no accelerator; it is named like nvidia.com/gpu"),
        (("--priority", "2147483648"), 2, "2147483648 is not in the range"),
        (("--max-runtime", "long"), 2, "'long' is no duration; write it like 90s"),
        (("--profile", "tpu"), 3, "no profile 'tpu'"),
    ],
)
def test_a_wrong_question_is_answered_by_what_is_wrong(
    virtual: VirtualPlace, words: tuple[str, ...], exit_code: int, says: str
) -> None:
    virtual.submit(a_workload("w-1", gpus=1))
    result = virtual.cli("why", *words)
    assert result.exit_code == exit_code and says in result.err
    assert result.out == "" and "Traceback" not in result.err


def test_what_can_never_start_is_said_so(virtual: VirtualPlace) -> None:
    result = virtual.cli("why", "--gpus", "5")
    assert result.exit_code == 0 and "it can never start" in result.out and "it has 4" in result.out
    assert virtual.cli("why", "--gpus", "5", "--json").data["forecast"]["never"] is True


# ---- of a workload


def test_one_that_waits_is_told_its_place_who_is_ahead_and_who_holds_what(virtual: VirtualPlace) -> None:
    virtual.submit(_limited("w-1", 4, 3600, name="train"), a_workload("w-2", gpus=3), a_workload("w-3", gpus=3))
    result = virtual.cli("why", "w-3")
    assert result.exit_code == 0 and result.out.startswith("w-3 queued for ")
    for words in (
        "(queue.",
        "number 2 of its queue",
        "3 nvidia.com/gpu",
        "in front of it",
        "w-2",
        "hold what is short",
        "train (w-1)",
    ):
        assert words in result.out
    data = virtual.cli("why", "w-2", "--json").data
    assert data["workload"]["spec"]["id"] == "w-2"
    assert data["forecast"]["position"] == 1 and data["forecast"]["ahead"] == [] and data["forecast"]["within_s"] > 0


def test_one_that_has_ended_is_told_why(virtual: VirtualPlace) -> None:
    virtual.submit(a_workload("w-1", command=program(exit_code=3)))
    virtual.backend.advance(60)
    result = virtual.cli("why", "w-1")
    assert result.exit_code == 0
    for words in ("w-1 failed", "it ended with exit code 3 (end.exit_code)", "exit_code=3", "`jupyter gpu logs w-1`"):
        assert words in result.out
    assert virtual.cli("why", "w-1", "--json").data["forecast"] is None


def test_one_that_runs_has_what_it_asked_for(virtual: VirtualPlace) -> None:
    virtual.submit(a_workload("w-1", gpus=1))
    virtual.backend.advance(60)
    assert "w-1 running for " in virtual.cli("why", "w-1").out


# ---- from Python


def test_python_asks_the_same(virtual: VirtualPlace) -> None:
    virtual.submit(a_workload("w-1", gpus=4), a_workload("w-2", gpus=1))
    with virtual.home.gpu() as gpu:
        assert not gpu.forecast(gpus=1).starts_now
        assert gpu.forecast(gpus=0, cpus=1).starts_now
        waits = gpu.why("w-2")
        assert waits and waits.position == 1
        assert gpu.why("w-1") is None
        assert [event.phase.value for event in gpu.story("w-2")] == ["queued"]
        with pytest.raises(InvalidRequestError, match=r"resources\.gpus: must be a whole number"):
            gpu.forecast(gpus="two")
        with pytest.raises(InvalidRequestError, match=r"resources\.gpu: there is no such setting; 'gpus' may be meant"):
            gpu.forecast(gpu=2)
