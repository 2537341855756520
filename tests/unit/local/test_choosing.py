"""Which devices go to whom."""

from __future__ import annotations

from collections.abc import Mapping

from jupyter_gpu.backends.local.choosing import choose
from jupyter_gpu.queueing import Decision
from jupyter_gpu.schema import NVIDIA_GPU, Claim, Device
from tests.builders import a_workload

A100, T4 = "NVIDIA A100-SXM4-40GB", "NVIDIA T4"


def devices(*models: str) -> list[Device]:
    return [Device(id=f"{model}-{number}", accelerator=NVIDIA_GPU, model=model) for number, model in enumerate(models)]


def chosen(takes: Mapping[str, Mapping[str, int]], *models: str) -> Mapping[str, object]:
    claims = {id: Claim.of(a_workload(id, gpus=sum(counts.values())), 1) for id, counts in takes.items()}
    return choose(Decision(starts=dict.fromkeys(takes, 1), models=takes), claims, devices(*models))


def test_each_gets_the_models_that_were_decided() -> None:
    given = chosen({"any": {T4: 1}, "a": {A100: 1}, "x": {A100: 1}}, T4, A100, A100)
    assert given == {"any": [f"{T4}-0"], "a": [f"{A100}-1"], "x": [f"{A100}-2"]}


def test_one_may_get_several_models() -> None:
    assert chosen({"many": {T4: 2, A100: 1}}, A100, T4, T4) == {"many": [f"{T4}-1", f"{T4}-2", f"{A100}-0"]}


def test_who_wants_no_device_gets_none() -> None:
    assert chosen({"none": {}}, A100) == {"none": []}


def test_one_for_whom_there_is_not_enough_is_left_out() -> None:
    assert set(chosen({"first": {T4: 2}, "second": {T4: 1}}, T4, T4)) == {"first"}
