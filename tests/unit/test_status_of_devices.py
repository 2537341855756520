"""How ``status`` shows devices: real ones, by a stub of NVIDIA's library, and emulated ones of several models."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from jupyter_gpu.backends.local.devices import account
from jupyter_gpu.schema import Resources
from jupyter_gpu.verbs.words import size
from tests import nvml
from tests.homes import COMMAND_S, Home


def test_status_shows_models_slices_and_who_else_computes(home: Home) -> None:
    home.configure(places={"local": {"backend": "local", "state_folder": str(home.state)}})
    stub = {"STUB_NAME": "NVIDIA A100", "STUB_MIG": "2=1", "STUB_PIDS": f"1={os.getpid()}", "STUB_SLICES": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "jupyter_gpu", "status"]
    variables = {**nvml.environment(nvml.build(home.folder)), **home.variables, **stub}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, timeout=COMMAND_S, check=True)
    assert re.search(rf"GPU-1 +nvidia.com/gpu +NVIDIA A100 +16 GiB +not ours: {account()} \(.*pid {os.getpid()}\)", done.stdout)
    assert re.search(r"MIG-201 +nvidia.com/mig-1g.18gb +a slice of GPU-2, NVIDIA A100 +16 GiB +free", done.stdout)
    assert "1 nvidia.com/gpu, 1 nvidia.com/mig-1g.18gb; free: 1 nvidia.com/mig-1g.18gb" in done.stdout


def test_status_shows_the_models_of_emulated_devices(home: Home) -> None:
    home.configure(places={"local": {**home.local, "emulated_models": ["A100", "H100"]}})
    out = home.cli("status").out
    assert re.search(r"GPU-emulated-0 +nvidia.com/gpu +A100 \(emulated\)", out)
    assert re.search(r"GPU-emulated-1 +nvidia.com/gpu +H100 \(emulated\)", out)


def test_what_is_asked_for_names_its_product() -> None:
    assert size(Resources(gpus=2, product="A100"), 4) == "4 x 2 nvidia.com/gpu (A100)"
    assert size(Resources(product="A100")) == "no device"
