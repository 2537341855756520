"""The words of the house: what they accept, what they refuse, and that they survive a journey."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

import jupyter_gpu.schema as schema_module
from jupyter_gpu.schema import (
    NVIDIA_GPU,
    Accelerator,
    Bounds,
    Changes,
    Device,
    Environment,
    GiB,
    KubernetesSettings,
    LocalSettings,
    LogLine,
    MiB,
    Phase,
    Place,
    PlaceSettings,
    Port,
    Profile,
    QueueStatus,
    Reason,
    ReplicaStatus,
    Resources,
    Schema,
    Selector,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
    format_bytes,
    parse_bytes,
)
from tests.builders import a_kernel, a_workload

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
CLASSES = [value for value in vars(schema_module).values() if isinstance(value, type) and issubclass(value, Schema)]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1 B", 1),
        ("4GiB", 4 * GiB),
        ("4gib", 4 * GiB),
        ("4Gi", 4 * GiB),
        (" 4 GiB ", 4 * GiB),
        ("1.5Gi", 3 * GiB // 2),
        ("512 MB", 512_000_000),
        ("512MiB", 512 * MiB),
        ("2G", 2_000_000_000),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1PiB", 2**50),
        ("0.3", 1),
    ],
)
def test_sizes_are_read_as_people_and_clusters_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["4XB", "", "GiB", "-1GiB", "1,5GiB", "4 G i B", "1e9", "four", "4GiB/s", "1..5Gi", "inf", "NaN"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size in bytes"):
        parse_bytes(text)
    with pytest.raises(ValidationError):
        Resources(memory_bytes=text)


def test_a_number_is_a_size_in_bytes() -> None:
    assert Resources(memory_bytes=123).memory_bytes == 123


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 * MiB // 2, "1.5 MiB"), (4 * GiB, "4 GiB"), (2**40, "1 TiB")],
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    "fields",
    [
        {"gpus": -1},
        {"gpus": 4097},
        {"gpus": 0.5},
        {"gpus": "two"},
        {"cpus": 0},
        {"cpus": -1},
        {"cpus": float("nan")},
        {"cpus": float("inf")},
        {"cpus": "NaN"},
        {"cpus": 5000},
        {"memory_bytes": 0},
        {"memory_bytes": -1},
        {"memory_bytes": float("nan")},
        {"shm_bytes": 0},
        {"accelerator": "gpu"},
        {"accelerator": "NVIDIA.com/gpu"},
        {"accelerator": "nvidia.com/"},
        {"accelerator": "nvidia.com/a/b"},
        {"accelerator": {"resource": "nvidia.com/gpu", "visible_variable": "NOT A NAME"}},
        {"gpu": 1},
    ],
    ids=str,
)
def test_resources_out_of_bounds_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Resources(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": "x" * 254},
        {"name": ""},
        {"name": "x" * 1001},
        {"kind": "notebook"},
        {"queue": ""},
        {"priority": 2**31},
        {"priority": -(2**31) - 1},
        {"replicas": 0},
        {"replicas": 10_001},
        {"command": ()},
        {"command": ("a\0b",)},
        {"id": "a\0b"},
        {"environment": {"variables": {"X": "a\0b"}}},
        {"environment": {"working_directory": "/a\0b"}},
        {"ttl_s": float("inf")},
        {"grace_s": float("nan")},
        {"start": "sometime"},
        {"start_timeout_s": 0},
        {"start_timeout_s": float("nan")},
        {"max_runtime_s": 0},
        {"max_runtime_s": float("nan")},
        {"orphan_after_s": -1},
        {"grace_s": -1},
        {"ttl_s": -1},
        {"labels": {"a": 1}},
        {"secret": "x"},
        {"environment": {"variables": {"A B": "c"}}},
        {"environment": {"variables": {"1A": "c"}}},
        {"environment": {"variables": {"A=": "c"}}},
        {"ports": ({"name": "Shell", "number": 1},)},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_a_workload_out_of_bounds_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        a_workload(**fields)


@pytest.mark.parametrize("number", [0, -1, 65_536])
def test_a_port_has_a_number_that_a_port_can_have(number: int) -> None:
    with pytest.raises(ValidationError):
        Port(name="http", number=number)


@pytest.mark.parametrize("name", ["", "Http", "a" * 16, "-a", "a-", "1a", "a_b", "a.b", "é"])
def test_a_port_has_a_name_that_a_cluster_takes(name: str) -> None:
    with pytest.raises(ValidationError):
        Port(name=name, number=80)


@pytest.mark.parametrize(
    ("resource", "variable"),
    [
        ("nvidia.com/gpu", "CUDA_VISIBLE_DEVICES"),
        ("nvidia.com/mig-1g.10gb", "CUDA_VISIBLE_DEVICES"),
        ("amd.com/gpu", "ROCR_VISIBLE_DEVICES"),
        ("huawei.com/Ascend910", "ASCEND_RT_VISIBLE_DEVICES"),
        ("cambricon.com/mlu", "MLU_VISIBLE_DEVICES"),
        ("example.org/thing", "JUPYTER_GPU_DEVICES"),
    ],
)
def test_a_name_is_enough_for_an_accelerator(resource: str, variable: str) -> None:
    accelerator = Resources(accelerator=resource).accelerator
    assert (accelerator.resource, accelerator.visible_variable) == (resource, variable)
    assert str(accelerator) == resource


def test_an_accelerators_own_variable_is_kept() -> None:
    accelerator = Accelerator.model_validate({"resource": "nvidia.com/gpu", "visible_variable": "MY_DEVICES"})
    assert accelerator.visible_variable == "MY_DEVICES"


@pytest.mark.parametrize("phase", Phase)
def test_three_phases_are_final(phase: Phase) -> None:
    assert phase.is_final == (phase.value in ("succeeded", "failed", "cancelled"))


@pytest.mark.parametrize(
    ("code", "phase"),
    [
        ("end.completed", Phase.SUCCEEDED),
        ("end.cancelled", Phase.CANCELLED),
        ("end.exit_code", Phase.FAILED),
        ("end.orphaned", Phase.FAILED),
        ("start.image_pull", Phase.FAILED),
    ],
)
def test_a_reason_decides_the_final_phase(code: str, phase: Phase) -> None:
    assert Reason(code=code, message="so it is").final_phase is phase


@pytest.mark.parametrize("code", ["", "end", "end.", ".busy", "End.Busy", "end.a.b", "end busy", "end.code1"])
def test_a_reasons_code_is_two_plain_words(code: str) -> None:
    with pytest.raises(ValidationError):
        Reason(code=code, message="")


@pytest.mark.parametrize("fields", [{"time": datetime(2030, 1, 31, 12)}, {"replica": -1}, {"attempt": 0}, {"stream": "stdin"}])
def test_a_log_line_has_a_zone_and_counts_from_where_it_should(fields: dict[str, Any]) -> None:
    valid = {"time": NOW, "replica": 0, "attempt": 1, "stream": "stdout"}
    LogLine(**valid)
    with pytest.raises(ValidationError):
        LogLine(**valid | fields)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        ({"ids": {"w-1", "w-2"}}, True),
        ({"ids": set()}, False),
        ({"kinds": {"batch"}}, True),
        ({"kinds": {"kernel"}}, False),
        ({"queue": "default", "server": ""}, True),
        ({"queue": "vision"}, False),
        ({"server": "s"}, False),
        ({"ids": {"w-1"}, "kinds": {"kernel"}}, False),
    ],
    ids=str,
)
def test_a_selector_wants_every_given_field(selector: dict[str, Any], matches: bool) -> None:
    assert Selector(**selector).matches(a_workload("w-1")) is matches


WORKLOAD = Workload(
    spec=a_kernel("k-1", gpus=2, labels={"a": "ü"}, max_runtime_s=1.5),
    status=WorkloadStatus(
        id="k-1",
        phase=Phase.RUNNING,
        created=NOW,
        started=NOW,
        reason=Reason(code="end.stopping", message="m", facts={"n": 1, "nested": {"a": [1, None]}}),
        replicas=(ReplicaStatus(rank=0, phase=Phase.RUNNING, node="n", devices=("GPU-1",)),),
    ),
)

VALUES: list[Schema] = [
    WORKLOAD,
    WORKLOAD.spec,
    WORKLOAD.status,
    Changes(complete=False, workloads=(WORKLOAD,), removed=("w-9",)),
    Selector(ids=frozenset({"a", "b"})),
    LogLine(time=NOW, replica=0, attempt=1, stream="report", report={"report": "end", "exit_code": None}),
    Place(
        name="p",
        backend="memory",
        identity="me",
        capacity={"nvidia.com/gpu": 2},
        free=None,
        devices=(Device(id="GPU-1", accelerator=NVIDIA_GPU, memory_bytes="80GiB"),),
        queues=(QueueStatus(name="default", waiters=("w-1",)),),
    ),
    Profile(resources=Resources(gpus=1), bounds=Bounds(max_memory_bytes="8GiB"), argv=("R", "{connection_file}")),
    Environment(image="localhost/pyk:1", variables={"A": "b"}),
    LocalSettings(state_folder="/tmp/x", emulated_gpus=2),
    KubernetesSettings(namespace="ns"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_value_survives_a_journey_as_json(value: Schema) -> None:
    assert type(value).model_validate_json(value.model_dump_json()) == value
    assert type(value).model_validate(value.model_dump(mode="json")) == value


@pytest.mark.parametrize("schema", CLASSES, ids=lambda schema: schema.__name__)
def test_every_class_is_closed_and_frozen_and_says_what_it_is(schema: type[Schema]) -> None:
    assert schema.model_config["extra"] == "forbid"
    assert schema.model_config["frozen"]
    assert schema.__doc__


@pytest.mark.parametrize("schema", CLASSES, ids=lambda schema: schema.__name__)
def test_every_class_has_a_json_schema_for_forms(schema: type[Schema]) -> None:
    assert schema.model_json_schema()["type"] == "object"


def test_a_value_can_not_be_changed() -> None:
    with pytest.raises(ValidationError):
        Resources().gpus = 1


def test_a_field_of_another_version_is_refused() -> None:
    with pytest.raises(ValidationError, match="next_years_field"):
        WorkloadSpec.model_validate(a_workload().model_dump() | {"next_years_field": 3})


@pytest.mark.parametrize("kind", [LocalSettings, KubernetesSettings])
def test_settings_are_told_apart_by_their_backend(kind: type[Schema]) -> None:
    settings = kind()
    assert TypeAdapter(PlaceSettings).validate_json(settings.model_dump_json()) == settings


def test_everything_that_the_package_offers_is_there() -> None:
    assert all(hasattr(schema_module, name) for name in schema_module.__all__)
