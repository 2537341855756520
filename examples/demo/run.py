"""The demo: two notebooks on GPU kernels while a third waits for its place, and a restart that keeps the device.

Run by ``make demo``; with ``--configure`` it only writes its configuration, for ``make lab``. It uses the
machine's GPUs, or unless there are just two, two emulated ones. Everything it makes is in ``demo-out/``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "demo-out"
CONFIG = OUT / "config"
RUNS = {"heat": ("heat.ipynb", {}), "pi": ("pi.ipynb", {}), "pi-again": ("pi.ipynb", {"seed": 2})}


def write_configuration() -> bool:
    """Write the demo's configuration, and return whether its GPUs are emulated."""
    import jupyter_gpu
    from jupyter_gpu.config import Site
    from jupyter_gpu.schema import LocalSettings

    with jupyter_gpu.connect(site=Site(places={"local": LocalSettings(state_folder=OUT / "state")})) as gpu:
        emulated = sum(gpu.place().capacity.values()) != 2  # with more, nobody would have to wait
    place = {"backend": "local", "state_folder": str(OUT / "state"), **({"emulated_gpus": 2} if emulated else {})}
    profile = {"display_name": "Python 3 (GPU)", "resources": {"gpus": 1, "memory_bytes": "2GiB"}}
    CONFIG.mkdir(parents=True, exist_ok=True)
    site = {"JupyterGpu": {"places": {"local": place}, "profiles": {"gpu": profile}}}
    (CONFIG / "jupyter_gpu_config.json").write_text(json.dumps(site, indent=2))
    return emulated


@dataclass
class Run:
    """One papermill process."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path
    log: Path


def start(name: str, notebook: str, parameters: dict[str, int]) -> Run:
    """Start papermill on a GPU kernel, as anybody would on the command line."""
    output, log = OUT / f"{name}.ipynb", OUT / f"{name}.log"
    words = [sys.executable, "-m", "papermill", str(HERE / notebook), str(output), "-k", "gpu", "--no-progress-bar"]
    words += [word for key, value in parameters.items() for word in ("-p", key, str(value))]
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "JPY_SESSION_NAME": name})
    return Run(name, process, output, log)


def main() -> int:
    """Run the demo and return its exit code."""
    console = Console(soft_wrap=True)
    began = time.time()
    emulated = write_configuration()
    if "--configure" in sys.argv:
        return 0
    os.environ["JUPYTER_CONFIG_DIR"] = str(CONFIG)
    import jupyter_gpu

    gpu = jupyter_gpu.connect()

    def table() -> Table:
        shown = Table(title="what ran where" + (" (the GPUs are emulated)" if emulated else ""))
        for column in ("notebook", "phase", "device", "node", "waited", "ran", "why"):
            shown.add_column(column)
        now = time.time()
        mine = (workload for workload in gpu.list(ended=True) if workload.status.created.timestamp() >= began)
        for workload in sorted(mine, key=lambda workload: workload.status.sequence):
            status = workload.status
            begun = status.started.timestamp() if status.started else now
            over = status.ended.timestamp() if status.ended else now
            replica = status.replicas[0] if status.replicas else None
            why = status.reason.message if status.reason and status.phase.value == "queued" else ""
            shown.add_row(
                workload.spec.name,
                status.phase.value,
                ", ".join(replica.devices) if replica else "",
                (replica.node or "") if replica else "",
                f"{begun - status.created.timestamp():.1f} s",
                f"{over - begun:.1f} s" if status.started else "",
                why,
            )
        return shown

    console.print("Three notebooks by papermill, each on one GPU; there are two.")
    runs = [start(name, *what) for name, what in RUNS.items()]
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while any(run.process.poll() is None for run in runs):
            live.update(table())
            time.sleep(0.25)
    failed = [run for run in runs if run.process.returncode]
    for run in failed:
        console.print(f"{run.name} failed; {run.log} says:\n{run.log.read_text()[-2000:]}")
    kept = restart_in_place(console)
    console.print(table())
    gpu.close()
    for run in runs:
        console.print(f"[bold]{run.name}[/bold]: {said(run.output)}  ->  {run.output.relative_to(OUT.parent)}")
    waited = [line for run in runs for line in run.log.read_text().splitlines() if "in line" in line]
    console.print("What the one that waited was told:", *(waited[:1] or ["(nobody had to wait)"]))
    console.print("\nNow in JupyterLab, with the same two GPUs: [bold]make lab[/bold], then choose the kernel 'Python 3 (GPU)'.")
    return 0 if kept and waited and not failed else 1


def said(notebook: Path) -> str:
    """Return what a notebook's cells printed, in one line."""
    cells = json.loads(notebook.read_text())["cells"]
    texts = [o["text"] for cell in cells for o in cell.get("outputs", []) if o.get("output_type") == "stream"]
    return "; ".join("".join(text).strip().replace("\n", "; ") for text in texts)


def restart_in_place(console: Console) -> bool:
    """Restart a kernel, show that it keeps its device, and return whether it did."""
    from jupyter_client.manager import start_new_kernel

    where = "import os; print(os.environ['JUPYTER_GPU_DEVICES'], os.getpid(), os.getppid())"
    manager, client = start_new_kernel(kernel_name="gpu", env={**os.environ, "JPY_SESSION_NAME": "restarted"})
    answers = []
    for restart in (False, True):
        if restart:
            begun = time.monotonic()
            manager.restart_kernel()
            client.wait_for_ready(timeout=60)
            console.print(f"Restart in place took {time.monotonic() - begun:.1f} s.")
        words: list[str] = []
        client.execute_interactive(
            where, timeout=60, output_hook=lambda m, words=words: words.append(m["content"].get("text", ""))
        )
        answers.append("".join(words).split())
    client.stop_channels()
    manager.shutdown_kernel()
    (device, pid, parent), (device_after, pid_after, parent_after) = answers
    same = (device, parent) == (device_after, parent_after)
    verdict = "the same device" if same else "ANOTHER device or parent"
    console.print(
        f"Device {device} -> {device_after}, kernel {pid} -> {pid_after}, parent {parent} -> {parent_after}: {verdict}."
    )
    return same


if __name__ == "__main__":
    sys.exit(main())
