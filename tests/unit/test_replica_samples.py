"""What a program uses is sampled, reported and added up, also where a driver does not answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests import nvml
from tests.unit.replicas import MIB, ARunner, run

BUSY = "import time\nheld = bytearray(b'1') * (40 << 20)\nwhile time.process_time() < 0.5: pass\n"


def until_told(folder: Path, text: str = '"sample"', times: int = 2) -> str:
    """Return lines of a program that waits until its log holds a text so often."""
    log = str(folder / "attempt" / "log")
    return f"import time\nwhile open({log!r}).read().count({text!r}) < {times}: time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stub of NVIDIA's library."""
    return nvml.build(tmp_path_factory.mktemp("nvml"))


def run_with(driver: Path, folder: Path, devices: list[str], *, text: str = '"sample"', **settings: str) -> ARunner:
    """Run a program with devices of a stubbed driver, until its log holds a text twice."""
    return run(folder, until_told(folder, text), devices=devices, variables={"LD_LIBRARY_PATH": str(driver), **settings})


def devices_of(runner: ARunner) -> list[dict[str, Any]]:
    """Return what its reports say of devices."""
    return [device for report in runner.reports("sample") for device in report["gpus"]]


def test_what_it_uses_is_reported_while_it_runs_and_at_the_end(tmp_path: Path) -> None:
    runner = run(tmp_path, BUSY + until_told(tmp_path))
    reports = runner.reports("sample")
    assert max(report["cpu"] for report in reports) > 0
    assert max(report["memory_bytes"] for report in reports) > 40 * MIB
    assert all(report["gpus"] == [] for report in reports)
    assert [line.report["report"] for line in runner._lines() if line.report][-2:] == ["sample", "end"]


def test_what_was_used_is_added_up(tmp_path: Path) -> None:
    runner = run(tmp_path, BUSY)
    usage = runner.content("usage.json")
    assert set(usage) == {"measured_device_s", "idle_device_s", "cpu_s", "peak_memory_bytes"}
    assert usage["cpu_s"] >= 0.48  # it ran 0.5 s, and the system counts hundredths
    assert usage["peak_memory_bytes"] == runner.content("end.json")["facts"]["peak_memory_bytes"] > 40 * MIB
    assert usage["measured_device_s"] == 0


def test_processes_that_ended_meanwhile_count(tmp_path: Path) -> None:
    child = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    code = f"import os, sys, subprocess\nfor _ in range(3): subprocess.run([sys.executable, '-S', '-c', {child!r}])"
    assert run(tmp_path, code).content("usage.json")["cpu_s"] >= 0.9


def test_a_program_too_short_for_a_sample_has_totals_all_the_same(tmp_path: Path) -> None:
    runner = run(tmp_path, "x = bytearray(b'1') * (30 << 20)")
    assert runner.reports("sample") == []
    assert runner.content("usage.json")["peak_memory_bytes"] > 30 * MIB


def test_its_own_devices_are_measured(driver: Path, tmp_path: Path) -> None:
    settings = {"STUB_UTILISATION": "1=50,2=90", "STUB_MEMORY_USED": f"1={2**30},201={2**20}"}
    runner = run_with(driver, tmp_path, ["GPU-1", "MIG-201"], text="MIG-201", **settings)
    found = {device["id"]: device for device in devices_of(runner)}
    assert set(found) == {"GPU-1", "MIG-201"}
    assert found["GPU-1"] == {"id": "GPU-1", "utilization": 0.5, "memory_bytes": 2**30}
    assert found["MIG-201"]["memory_bytes"] == 2**20
    usage = runner.content("usage.json")
    assert usage["measured_device_s"] > usage["idle_device_s"] > 0  # the slice does nothing


def test_a_device_that_does_nothing_is_idle(driver: Path, tmp_path: Path) -> None:
    usage = run_with(driver, tmp_path, ["GPU-1"], text='"utilization"', STUB_UTILISATION="0").content("usage.json")
    assert usage["idle_device_s"] == usage["measured_device_s"] > 0


def test_what_does_not_exist_is_not_measured(driver: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    runner = run_with(driver, tmp_path, ["GPU-emulated-0"], STUB_CALLS=str(calls))
    assert devices_of(runner) == []
    assert runner.content("usage.json")["measured_device_s"] == 0
    assert calls.read_text().splitlines().count("nvmlDeviceGetHandleByUUID") == 1  # it is not asked again


@pytest.mark.parametrize("settings", [{"STUB_INIT": "9"}, {"STUB_HANDLE": "15"}])
def test_a_driver_that_fails_costs_its_figures_only(driver: Path, tmp_path: Path, settings: dict[str, str]) -> None:
    runner = run_with(driver, tmp_path, ["GPU-1"], **settings)
    assert runner.content("end.json")["code"] == "end.completed"
    assert devices_of(runner) == []
    assert runner.reports("sample")


def test_an_old_driver_tells_what_it_can(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    old = nvml.build(tmp_path_factory.mktemp("old"), without=["nvmlDeviceGetUtilizationRates"])
    runner = run_with(old, tmp_path, ["GPU-1"], text='"utilization"', STUB_MEMORY_USED="5")
    assert devices_of(runner)[0] == {"id": "GPU-1", "utilization": None, "memory_bytes": 5}
    older = nvml.build(tmp_path_factory.mktemp("older"), without=["nvmlDeviceGetHandleByUUID"])
    (tmp_path / "again").mkdir()
    assert devices_of(run_with(older, tmp_path / "again", ["GPU-1"])) == []


def test_a_driver_that_never_answers_holds_nobody_up(driver: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "calls")  # the stub waits until somebody reads it, for ever
    runner = run_with(driver, tmp_path, ["GPU-1"], STUB_CALLS=str(tmp_path / "calls"))
    assert runner.content("end.json")["code"] == "end.completed"
    assert runner.reports("sample")
    assert devices_of(runner) == []
