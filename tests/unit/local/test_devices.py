"""Devices by NVML: a stub of the driver's library stands for the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.local import LocalBackend
from jupyter_gpu.backends.local.devices import Devices, account, find_devices
from jupyter_gpu.errors import QuotaExceededError
from jupyter_gpu.schema import NVIDIA_GPU, Accelerator, Device, LocalSettings, Resources
from tests import nvml
from tests.builders import a_workload

LOOK = """
import json, os, sys
from jupyter_gpu.backends.local.devices.nvidia import NvidiaDevices

def look(nvidia, ours, variables):
    os.environ.update(variables)
    found = nvidia.look(ours.__contains__)
    for name in variables:
        del os.environ[name]
    devices, unseen = [device.model_dump(mode="json") for device in found.devices], sorted(found.unseen)
    return {"devices": devices, "notes": found.notes, "capacity": found.capacity, "free": found.free(()), "unseen": unseen}

def looks(keep_s, steps):
    nvidia = NvidiaDevices(keep_s)
    return [look(nvidia, *step) for step in steps]

print(json.dumps({name: looks(*what) for name, what in json.loads(sys.argv[1]).items()}))
"""

NOBODY = 2**22 + 1  # more than a pid can be
ME = os.getpid()
STEADY = 1e9
"""Seconds for which a layout is kept in tests that look at what is kept."""

Step = tuple[Sequence[int], Mapping[str, str]]
"""The pids that are ours, and what the stub answers."""


def once(*ours: int, **variables: object) -> tuple[float, list[Step]]:
    return 0.0, [(ours, {name: str(value) for name, value in variables.items()})]


LOOKS: dict[str, tuple[float, list[Step]]] = {
    "plain": once(),
    "eight": once(STUB_COUNT=8, STUB_NAME="1=NVIDIA A100-SXM4-40GB,2=NVIDIA H100 80GB HBM3", STUB_MEMORY="1=1000,2=2000"),
    "foreign": once(STUB_PIDS=f"1={ME}"),
    "crowd": once(ME, STUB_PIDS=f"1={ME}+{NOBODY}+{os.getppid()}+{NOBODY}"),
    "unseen": once(STUB_PIDS=f"1={NOBODY}"),
    "nameless": once(STUB_PIDS="1=0"),
    "ours": once(ME, STUB_PIDS=f"1={ME}"),
    "lost at first": once(STUB_HANDLE="2=15"),
    "split": once(STUB_MIG="2=1", STUB_NAME="NVIDIA A100-SXM4-40GB", STUB_MEMORY="201=9000"),
    "odd slices": once(STUB_MIG="2=1", STUB_SLICES=3, STUB_PROFILE="201=MIG 1c.2g.10gb,202=MIG 1g.10gb+me,203=slice"),
    "no slices": once(STUB_MIG="2=1", STUB_SLICES=0),
    "foreign on a slice": once(STUB_MIG="2=1", STUB_PIDS=f"202={ME}"),
    "MIG is off": once(STUB_MIG=0),
    "prohibited": once(STUB_MODE="1=2"),
    "exclusive": once(STUB_MODE="1=3"),
    "shared memory": once(STUB_MEMORY_ERROR="1=3"),
    "not told": once(STUB_ASK="1=4"),
    "no driver": once(STUB_INIT=9),
    "kept": (STEADY, [((), {}), ((), {"STUB_PIDS": f"1={ME}", "STUB_NAME": "another"}), ((), {})]),
    "fell off the bus": (STEADY, [((), {}), ((), {"STUB_ASK": "2=15"}), ((), {})]),
    "split anew": (STEADY, [((), {}), ((), {"STUB_ASK": "2=2", "STUB_MIG": "2=1"}), ((), {})]),
}


def looked(folder: Path, looks: Mapping[str, tuple[float, list[Step]]], **variables: str) -> dict[str, Any]:
    """Return what was found, by the name of the situation; one process looks at all of them."""
    command = [sys.executable, "-c", LOOK, json.dumps(looks)]
    done = subprocess.run(command, env={**nvml.environment(folder), **variables}, check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    return {name: steps[0] if len(steps) == 1 else steps for name, steps in found.items()}


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return looked(nvml.build(tmp_path_factory.mktemp("nvml")), LOOKS)


def ids(found: Mapping[str, Any]) -> list[str]:
    return [device["id"] for device in found["devices"]]


def test_gpus_are_named_by_their_uuid(looks: Any) -> None:
    first, second = looks["plain"]["devices"]
    assert (first["id"], second["id"]) == ("GPU-1", "GPU-2")
    assert (first["model"], first["memory_bytes"], first["emulated"]) == ("NVIDIA Stub", 2**34, False)
    assert (looks["plain"]["capacity"], looks["plain"]["notes"]) == ({"nvidia.com/gpu": 2}, [])


def test_gpus_of_several_models_are_told_apart(looks: Any) -> None:
    first, second, third, *_ = looks["eight"]["devices"]
    assert (first["model"], first["memory_bytes"]) == ("NVIDIA A100-SXM4-40GB", 1000)
    assert (second["model"], second["memory_bytes"]) == ("NVIDIA H100 80GB HBM3", 2000)
    assert third["model"] == "NVIDIA Stub"
    assert looks["eight"]["capacity"] == {"nvidia.com/gpu": 8}


def test_a_gpu_on_which_somebody_else_computes_is_left_alone(looks: Any) -> None:
    first, second = (device["foreign"] for device in looks["foreign"]["devices"])
    assert first.startswith(f"{account()} (")
    assert first.endswith(f", pid {ME})")
    assert second is None
    assert looks["foreign"]["free"] == {"nvidia.com/gpu": ["GPU-2"]}
    assert looks["foreign"]["capacity"] == {"nvidia.com/gpu": 2}
    assert looks["foreign"]["unseen"] == []


def test_all_strangers_are_named_once_and_ours_not(looks: Any) -> None:
    named = looks["crowd"]["devices"][0]["foreign"].split(", pid ")
    assert named[0].startswith(f"pid {NOBODY}, {account()} (")
    assert named[1] == f"{os.getppid()})"
    assert looks["crowd"]["unseen"] == []


@pytest.mark.parametrize(("look", "words"), [("unseen", f"pid {NOBODY}"), ("nameless", "an unknown process")])
def test_a_process_that_can_not_be_seen_is_somebody_elses(looks: Any, look: str, words: str) -> None:
    assert looks[look]["devices"][0]["foreign"] == words
    assert looks[look]["free"] == {"nvidia.com/gpu": ["GPU-2"]}
    assert looks[look]["unseen"] == ["GPU-1"]


def test_a_process_that_can_not_be_seen_on_a_device_of_ours_is_taken_for_ours() -> None:
    busy = [Device(id=id, accelerator=NVIDIA_GPU, foreign="pid 7") for id in ("GPU-1", "GPU-2", "GPU-3")]
    found = Devices(tuple(busy), unseen=frozenset({"GPU-1", "GPU-3"}))
    shown = found.held_by({"GPU-1": "w-1", "GPU-2": "w-2"})
    assert [(device.holder, device.foreign) for device in shown] == [("w-1", None), ("w-2", "pid 7"), (None, "pid 7")]


def test_our_own_processes_are_no_strangers(looks: Any) -> None:
    assert looks["ours"]["free"] == {"nvidia.com/gpu": ["GPU-1", "GPU-2"]}


def test_a_gpu_that_is_lost_does_not_hide_the_others(looks: Any) -> None:
    assert ids(looks["lost at first"]) == ["GPU-1"]
    assert looks["lost at first"]["notes"] == ["GPU 1 can't be used: GPU is lost"]


def test_a_gpu_that_falls_off_the_bus_is_left_out_and_comes_back(looks: Any) -> None:
    before, lost, after = looks["fell off the bus"]
    assert ids(before) == ids(after) == ["GPU-1", "GPU-2"]
    assert (ids(lost), lost["notes"]) == (["GPU-1"], ["GPU-2 can't be used: GPU is lost"])


def test_a_split_gpu_is_its_slices(looks: Any) -> None:
    split = looks["split"]
    assert split["free"] == {"nvidia.com/gpu": ["GPU-1"], "nvidia.com/mig-1g.18gb": ["MIG-201", "MIG-202"]}
    gpu, slice, _ = split["devices"]
    assert (slice["parent"], slice["model"], slice["memory_bytes"]) == ("GPU-2", "NVIDIA A100-SXM4-40GB", 9000)
    assert gpu["parent"] is None
    assert split["notes"] == []


def test_slices_are_named_as_the_device_plugin_names_them(looks: Any) -> None:
    assert set(looks["odd slices"]["capacity"]) == {"nvidia.com/gpu", "nvidia.com/mig-1c.2g.10gb", "nvidia.com/mig-1g.10gb.me"}
    assert looks["odd slices"]["notes"] == ["a slice of GPU 1 is left out: its name, 'NVIDIA Stub slice', tells no MIG profile"]


def test_a_gpu_in_mig_mode_without_slices_has_no_device_and_a_note(looks: Any) -> None:
    assert ids(looks["no slices"]) == ["GPU-1"]
    assert "GPU 1 is in MIG mode and has no slice" in looks["no slices"]["notes"][0]


def test_a_stranger_on_a_slice_takes_that_slice_alone(looks: Any) -> None:
    free = looks["foreign on a slice"]["free"]
    assert free == {"nvidia.com/gpu": ["GPU-1"], "nvidia.com/mig-1g.18gb": ["MIG-201"]}


def test_a_gpu_that_could_be_split_and_is_not_is_whole(looks: Any) -> None:
    assert looks["MIG is off"]["capacity"] == {"nvidia.com/gpu": 2}


def test_a_gpu_that_was_split_anew_is_looked_at_anew(looks: Any) -> None:
    before, split, _ = looks["split anew"]
    assert ids(before) == ["GPU-1", "GPU-2"]
    assert ids(split) == ["GPU-1", "MIG-201", "MIG-202"]


def test_a_gpu_on_which_computing_is_prohibited_is_left_out(looks: Any) -> None:
    assert ids(looks["prohibited"]) == ["GPU-2"]
    assert looks["prohibited"]["notes"] == ["GPU 0 is left out: its compute mode is prohibited"]


def test_a_gpu_for_one_process_at_a_time_is_there_with_a_note(looks: Any) -> None:
    assert ids(looks["exclusive"]) == ["GPU-1", "GPU-2"]
    assert looks["exclusive"]["notes"] == ["GPU 0 takes one process at a time: its compute mode is exclusive"]


def test_a_gpu_without_memory_of_its_own_is_there(looks: Any) -> None:
    assert [device["memory_bytes"] for device in looks["shared memory"]["devices"]] == [0, 2**34]


def test_a_gpu_whose_processes_are_not_told_is_there_with_a_note(looks: Any) -> None:
    assert looks["not told"]["free"] == {"nvidia.com/gpu": ["GPU-1", "GPU-2"]}
    assert looks["not told"]["notes"] == ["who computes on GPU-1 can't be told: Insufficient Permissions"]


def test_a_library_without_its_driver_is_a_note(looks: Any) -> None:
    assert looks["no driver"]["devices"] == []
    assert "Driver Not Loaded" in looks["no driver"]["notes"][0]


def test_what_a_gpu_is_is_kept_and_who_computes_is_asked_each_time(looks: Any) -> None:
    before, busy, after = looks["kept"]
    assert [found["devices"][0]["model"] for found in (before, busy, after)] == ["NVIDIA Stub"] * 3
    assert [found["devices"][0]["foreign"] is None for found in (before, busy, after)] == [True, False, True]


def test_a_look_at_a_known_machine_asks_once_per_gpu(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    counts = {"STUB_COUNT": "8"}
    looked(nvml.build(tmp_path), {"": (STEADY, [((), counts), ((), {**counts, "STUB_CALLS": str(calls)})])})
    assert calls.read_text().split() == ["nvmlDeviceGetComputeRunningProcesses_v3"] * 8


@pytest.mark.parametrize(
    ("lacks", "notes"),
    [
        (["nvmlDeviceGetComputeRunningProcesses_v3"], []),
        (["nvmlDeviceGetMigMode", "nvmlDeviceGetComputeMode"], []),
        (
            ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"],
            [
                "who computes on GPU-1 can't be told: Function Not Found",
                "who computes on GPU-2 can't be told: Function Not Found",
            ],
        ),
    ],
    ids=["before 510", "before MIG", "before 450"],
)
def test_an_old_drivers_gpus_are_found(tmp_path: Path, lacks: list[str], notes: list[str]) -> None:
    found = looked(nvml.build(tmp_path, without=lacks), {"": once(STUB_PIDS=f"1={ME}")})[""]
    assert (ids(found), found["notes"]) == (["GPU-1", "GPU-2"], notes)
    assert found["free"] == {"nvidia.com/gpu": ["GPU-1", "GPU-2"] if notes else ["GPU-2"]}


def test_a_machine_without_the_library_has_none_and_a_note() -> None:
    if (found := find_devices(LocalSettings(), lambda pid: False)).devices:
        pytest.skip("this machine has GPUs")
    assert found.capacity == {}
    assert "no NVIDIA GPU" in found.notes[0]


def test_emulated_ones_are_named_so() -> None:
    found = find_devices(LocalSettings(emulated_gpus=2), lambda pid: False)
    assert [(device.id, device.model, device.emulated) for device in found.devices] == [
        ("GPU-emulated-0", "emulated", True),
        ("GPU-emulated-1", "emulated", True),
    ]
    assert "emulated" in found.notes[0]
    assert find_devices(LocalSettings(emulated_gpus=0), lambda pid: False).capacity == {}


def test_emulated_ones_have_the_models_in_turn() -> None:
    settings = LocalSettings(emulated_gpus=3, emulated_models=("A100", "H100"))
    assert [device.model for device in find_devices(settings, lambda pid: False).devices] == ["A100", "H100", "A100"]


def test_models_without_emulated_gpus_are_refused() -> None:
    with pytest.raises(ValidationError, match="emulated_models needs emulated_gpus"):
        LocalSettings(emulated_models=("A100",))


async def test_more_than_there_is_says_what_there_is(local_backend: Backend) -> None:
    with pytest.raises(QuotaExceededError, match=r"local can never give 3 nvidia.com/gpu: it has 2"):
        await local_backend.submit(a_workload("w-1", gpus=3))
    amd = Resources(accelerator=Accelerator.model_validate("amd.com/gpu"), gpus=1)
    with pytest.raises(QuotaExceededError, match=r"it has none; ask for what is there: 2 nvidia.com/gpu"):
        await local_backend.submit(a_workload("w-1", resources=amd))


async def test_where_there_is_none_it_says_how_to_try_things_out(tmp_path: Path) -> None:
    async with LocalBackend("local", LocalSettings(state_folder=tmp_path / "state", emulated_gpus=0)) as backend:
        with pytest.raises(QuotaExceededError, match=r"it has none; .*to try things out, set 'emulated_gpus'"):
            await backend.submit(a_workload("w-1", gpus=1))
