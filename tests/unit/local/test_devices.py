"""Devices by NVML: a stub of the driver's library stands for the real one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.local import LocalBackend
from jupyter_gpu.backends.local.devices import account, find_devices
from jupyter_gpu.errors import QuotaExceededError
from jupyter_gpu.schema import Accelerator, LocalSettings, Resources
from tests.builders import a_workload

STUB = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { unsigned long long total, free, used; } memory_t;
static int number(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
int nvmlInitWithFlags(unsigned flags) { return number("STUB_INIT"); }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "Some Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(long)(index + 1);
    return index == 1 ? number("STUB_SECOND") : 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    return snprintf(text, size, (long)handle > 100 ? "MIG-%ld" : "GPU-%ld", (long)handle) < 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    return snprintf(text, size, (long)handle > 100 ? "NVIDIA Stub MIG 1g.18gb" : "NVIDIA Stub") < 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) { memory->total = 1ull << 34; return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *then) {
    *now = *then = number("STUB_MIG") == (long)handle;
    return getenv("STUB_MIG") ? 0 : 3;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **part) {
    *part = (void *)(long)(101 + index);
    return index < 2 ? 0 : 6;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *found) {
    int pid = number("STUB_PID");
    if (!pid || (long)handle != 1) { *count = 0; return 0; }
    if (!found) { *count = 1; return 7; }
    memset(found, 0, sizeof *found);
    found->pid = pid;
    *count = 1;
    return 0;
}
"""

LOOK = """
import json, os, sys
from jupyter_gpu.backends.local import devices
from jupyter_gpu.schema import LocalSettings

def look(ours, variables):
    devices._open.cache_clear()
    os.environ.update(variables)
    found = devices.find_devices(LocalSettings(), ours.__contains__)
    for name in variables:
        del os.environ[name]
    shown = [device.model_dump(mode="json") for device in found.devices]
    return {"devices": shown, "notes": found.notes, "capacity": found.capacity, "free": found.free(())}

print(json.dumps({name: look(*what) for name, what in json.loads(sys.argv[1]).items()}))
"""

NOBODY = 2**22 + 1  # more than a pid can be
LOOKS = {
    "plain": ([], {}),
    "foreign": ([], {"STUB_PID": str(os.getpid())}),
    "unseen": ([], {"STUB_PID": str(NOBODY)}),
    "ours": ([os.getpid()], {"STUB_PID": str(os.getpid())}),
    "lost": ([], {"STUB_SECOND": "15"}),
    "split": ([], {"STUB_MIG": "2"}),
    "no driver": ([], {"STUB_INIT": "9"}),
}


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What was found, by the name of the situation; one process looks at all of them."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc to build a stub of NVML with")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "stub.c").write_text(STUB)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, folder / "stub.c"], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", LOOK, json.dumps(LOOKS)], env=environment, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def test_gpus_are_named_by_their_uuid(looks: Any) -> None:
    first, second = looks["plain"]["devices"]
    assert (first["id"], second["id"]) == ("GPU-1", "GPU-2")
    assert (first["model"], first["memory_bytes"], first["emulated"]) == ("NVIDIA Stub", 2**34, False)
    assert (looks["plain"]["capacity"], looks["plain"]["notes"]) == ({"nvidia.com/gpu": 2}, [])


def test_a_gpu_on_which_somebody_else_computes_is_left_alone(looks: Any) -> None:
    first, second = (device["foreign"] for device in looks["foreign"]["devices"])
    assert first.startswith(f"{account()} (")
    assert first.endswith(f", pid {os.getpid()})")
    assert second is None
    assert looks["foreign"]["free"] == {"nvidia.com/gpu": ["GPU-2"]}
    assert looks["foreign"]["capacity"] == {"nvidia.com/gpu": 2}


def test_a_process_that_can_not_be_seen_is_somebody_elses(looks: Any) -> None:
    assert looks["unseen"]["devices"][0]["foreign"] == f"pid {NOBODY}"


def test_our_own_processes_are_no_strangers(looks: Any) -> None:
    assert looks["ours"]["free"] == {"nvidia.com/gpu": ["GPU-1", "GPU-2"]}


def test_a_gpu_that_is_lost_does_not_hide_the_others(looks: Any) -> None:
    assert [device["id"] for device in looks["lost"]["devices"]] == ["GPU-1"]
    assert "GPU 1 can't be used" in looks["lost"]["notes"][0]


def test_a_split_gpu_is_its_slices(looks: Any) -> None:
    assert looks["split"]["free"] == {"nvidia.com/gpu": ["GPU-1"], "nvidia.com/mig-1g.18gb": ["MIG-101", "MIG-102"]}


def test_a_library_without_its_driver_is_a_note(looks: Any) -> None:
    assert looks["no driver"]["devices"] == []
    assert "Driver Not Loaded" in looks["no driver"]["notes"][0]


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
