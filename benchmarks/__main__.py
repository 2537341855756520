"""Measure every row, three times; fail when a ratio misses its budget in two of the three.

A row compares our way with the plain one, taking turns, and judges the ratio of the two medians. Absolute figures are printed,
not judged. ``python -m benchmarks [ROW ...]`` measures those whose name contains one of the words.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.rows import ROWS, Row

RUNS = 3


def main() -> int:
    """Run the benchmarks and return the exit code."""
    console = Console(width=130)
    wanted = [row for row in ROWS if not sys.argv[1:] or any(word in row.name for word in sys.argv[1:])]
    table = Table(title="speed: ratio of medians, ours : plain", caption=f"{os.cpu_count()} cores; {RUNS} runs")
    for column in ("what", "budget", *(f"run {run + 1}" for run in range(RUNS)), "ours", "plain", ""):
        table.add_column(column)
    missed = False
    with tempfile.TemporaryDirectory(prefix="jg-bench-") as folder:
        _configure(Path(folder))
        for row in wanted:
            if row.cluster and "KUBECONFIG" not in os.environ:
                table.add_row(row.name, f"{row.budget:.2f}", *["-"] * RUNS, "", "", "not measured: no KUBECONFIG")
                continue
            runs = []
            for number in range(RUNS):
                with console.status(f"{row.name}, run {number + 1} of {RUNS}"):
                    runs.append(asyncio.run(_measure(row)))
            ratios = [statistics.median(ours) / statistics.median(plain) for ours, plain in runs]
            misses = sum(ratio > row.budget for ratio in ratios)
            missed = missed or misses >= 2
            every = [[figure for run in runs for figure in run[side]] for side in (0, 1)]
            shown = [f"{statistics.median(figures):.3f} {row.unit}" for figures in every]
            table.add_row(
                row.name, f"{row.budget:.2f}", *(f"{r:.2f}" for r in ratios), *shown, "MISSED" if misses >= 2 else "kept"
            )
    console.print(table)
    return 1 if missed else 0


async def _measure(row: Row) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    plain: list[float] = []
    async with row.prepare() as (our_way, plain_way):
        await our_way()  # both once unmeasured: imports, caches, the connection
        await plain_way()
        for turn in range(row.turns):
            ways = [(our_way, ours), (plain_way, plain)]
            for way, figures in ways if turn % 2 else reversed(ways):  # whoever comes second must not always be the same
                figures.append(await way())
    return ours, plain


def _configure(folder: Path) -> None:
    places: dict[str, object] = {"local": {"backend": "local", "emulated_gpus": 2, "state_folder": str(folder / "state")}}
    profile = {"resources": {"gpus": 1, "cpus": 0.5, "memory_bytes": "1GiB"}}
    profiles = {"gpu": profile}
    if "KUBECONFIG" in os.environ:
        image = {"image": os.environ.get("JUPYTER_GPU_TEST_IMAGE", "localhost/pyk:1")}
        places["cluster"] = {"backend": "kubernetes", "namespace": "default", "image_pull_policy": "IfNotPresent"}
        profiles["pod"] = profile | {"place": "cluster", "environment": image}
    section = {"JupyterGpu": {"places": places, "profiles": profiles}}
    (folder / "jupyter_gpu_config.json").write_text(json.dumps(section))
    spec = json.loads((Path(__file__).parents[1] / "kernels" / "gpu" / "kernel.json").read_text())
    spec["metadata"]["kernel_provisioner"]["config"]["profile"] = "pod"
    (folder / "kernels" / "pod").mkdir(parents=True)
    (folder / "kernels" / "pod" / "kernel.json").write_text(json.dumps(spec))
    os.environ.update(JUPYTER_CONFIG_DIR=str(folder), JUPYTER_PATH=str(folder), JUPYTER_RUNTIME_DIR=str(folder / "runtime"))


if __name__ == "__main__":
    sys.exit(main())
