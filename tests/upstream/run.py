"""Run Jupyter's own tests with our provisioner in the place of its own: ``python tests/upstream/run.py``.

The tests come from the source distributions that requirements/upstream.txt pins, and run as they are, with
``JUPYTER_DEFAULT_PROVISIONER_NAME=jupyter-gpu`` on a local place. What is deselected stands here with its reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Suite:
    """One file of tests of one distribution."""

    distribution: str
    tests: str
    deselected: dict[str, str] = field(default_factory=dict)
    """Test -> why it is not for us."""


SUITES = (
    Suite("nbclient-0.11.0", "tests/test_client.py"),
    Suite("jupyter_client-8.10.0", "tests/test_kernelmanager.py"),
)
# their own settings of the kernel come by the environment, which our provisioner does not hand on unless a site says so
PASSED = ("IPYKERNEL_*", "NBEXECUTE_*")


def main() -> int:
    """Run the suites and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="jg-upstream-") as folder:
        work = Path(folder)
        download(work)
        environment = configure(work)
        codes = [run(suite, work, environment) for suite in SUITES]
        end_what_is_left(work)
        return max(codes)


def download(work: Path) -> None:
    """Fetch the source distributions, by hash, and unpack them."""
    words = ["download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
    pinned = ROOT / "requirements" / "upstream.txt"
    subprocess.run([sys.executable, "-m", "pip", *words, "-r", str(pinned), "-d", str(work)], check=True)
    for archive in work.glob("*.tar.gz"):
        with tarfile.open(archive) as content:
            content.extractall(work, filter="data")


def configure(work: Path) -> dict[str, str]:
    """Configure a local place that is large enough for all that these tests start at once."""
    from jupyter_gpu.schema import PASSED_VARIABLES

    place = {"backend": "local", "emulated_gpus": 64, "state_folder": str(work / "state")}
    place["passed_variables"] = [*PASSED_VARIABLES, *PASSED]
    (work / "config").mkdir()
    (work / "config" / "jupyter_gpu_config.json").write_text(json.dumps({"JupyterGpu": {"places": {"local": place}}}))
    return {
        **os.environ,
        "JUPYTER_CONFIG_PATH": str(work / "config"),  # their fixtures move JUPYTER_CONFIG_DIR
        "JUPYTER_DEFAULT_PROVISIONER_NAME": "jupyter-gpu",
    }


def end_what_is_left(work: Path) -> None:
    """End the kernels that these tests leave to their parent's death; the state folder goes away with us."""
    import jupyter_gpu
    from jupyter_gpu.config import Site
    from jupyter_gpu.schema import LocalSettings

    place = LocalSettings(state_folder=work / "state", emulated_gpus=64)
    with jupyter_gpu.connect(site=Site(places={"local": place})) as gpu:
        for workload in gpu.list():
            gpu.cancel(workload.spec.id)
            with gpu.follow(workload.spec.id) as changes:
                for _ in changes:
                    pass


def run(suite: Suite, work: Path, environment: dict[str, str]) -> int:
    """Run one suite and return pytest's exit code."""
    print(f"== {suite.distribution}: {suite.tests}, with our provisioner", flush=True)
    for test, reason in suite.deselected.items():
        print(f"   deselected: {test}: {reason}", flush=True)
    words = ["-q", "-rs", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "-o", "asyncio_mode=auto", "-W", "ignore"]
    words += ["--timeout", "100", *(f"--deselect={test}" for test in suite.deselected), suite.tests]
    return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=work / suite.distribution, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
