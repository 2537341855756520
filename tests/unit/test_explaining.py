"""What is wrong with a value, in words that a person can act on."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError
from pydantic_core import core_schema

from jupyter_gpu.config import Site
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import KernelOptions, PlaceSettings, QueueSet, Resources, WorkloadSpec, explaining
from jupyter_gpu.schema.base import Priority
from jupyter_gpu.schema.explaining import checked, explain


def _said(schema: Any, value: Any, root: str = "") -> str:
    with pytest.raises(InvalidRequestError) as caught:
        checked(schema, value, root)
    return str(caught.value)


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        (Resources, {"gpus": "two"}, "gpus: must be a whole number (given: 'two')"),
        (Resources, {"gpus": 1.5}, "gpus: must be a whole number (given: 1.5)"),
        (Resources, {"gpus": -1}, "gpus: must be at least 0 (given: -1)"),
        (Resources, {"cpus": 0}, "cpus: must be more than 0 (given: 0)"),
        (Resources, {"gpu": 1}, "gpu: there is no such setting; 'gpus' may be meant, and there are accelerator,"),
        (Resources, {"memory_bytes": "4XB"}, "memory_bytes: '4XB' is no size in bytes; write it like 512MiB, 4GiB or 1.5GB"),
        (Resources, 3, "must be a mapping of names to values (given: 3)"),
        (KernelOptions, {"memroy": 1}, "memroy: there is no such setting; 'memory' may be meant"),
        (WorkloadSpec, {"id": "w", "kind": "pizza", "name": "w", "command": ["a"]}, "kind: must be one of 'kernel', 'batch',"),
        (WorkloadSpec, {"id": "w", "kind": "batch", "name": "", "command": ["a"]}, "name: must not be empty (given: '')"),
        (WorkloadSpec, {"id": "w", "kind": "batch", "name": "w"}, "command is missing"),
        (Priority, 2**31, "must be less than 2147483648 (given: 2147483648)"),
        (PlaceSettings, {"backend": "local", "poll": 1}, "poll: there is no such setting; 'poll_s' may be meant"),
        (Site, {"places": {"a b": {"backend": "local", "emulated_gpus": -1}}}, "places['a b'].emulated_gpus: must be at least 0"),
        (QueueSet, {"queues": [{"name": "v"}, {"name": "w", "cohort": 3}]}, "queues.w.cohort: must be text (given: 3)"),
        (QueueSet, {"queues": {"v": {"cohort": 3}}}, "queues.v.cohort: must be text (given: 3)"),
        (QueueSet, {"queues": None}, "queues must be a mapping of names to what is set of each"),
    ],
)
def test_a_wrong_value_is_named_by_its_place_and_what_it_should_be(schema: Any, value: Any, says: str) -> None:
    said = _said(schema, value)
    assert says in said
    assert "Input should" not in said and "Extra inputs" not in said and "pydantic" not in said


def test_without_a_schema_the_place_is_named_all_the_same() -> None:
    with pytest.raises(ValidationError) as caught:
        Resources.model_validate({"gpus": -1, "gpu": 1})
    assert explain(caught.value, "asked") == "asked.gpus: must be at least 0 (given: -1); asked.gpu: there is no such setting"


def test_many_mistakes_are_counted_and_long_values_cut() -> None:
    said = _said(QueueSet, {"queues": {f"q{number}": {"cohort": [number] * 100} for number in range(8)}})
    assert said.endswith("; and 3 more") and "..." in said and len(said) < 1000


def test_what_is_large_by_holding_one_thing_many_times_is_cut_before_it_is_written_out() -> None:
    bomb: list[Any] = ["x"] * 10
    for _ in range(60):  # the aliases of YAML do this in some lines
        bomb = [bomb] * 10
    assert "must be a mapping of names to values (given: [[[" in _said(QueueSet, {"queues": {"v": bomb}})


def test_every_word_of_ours_is_for_an_error_that_pydantic_has() -> None:
    ours = {"path_type"}  # of its path schema, which is made of a plain error
    assert set(explaining._WORDS) - ours <= set(get_args(core_schema.ErrorType))
