"""A local place in a temporary folder, with queues that lend to each other, and the processes around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jupyter_gpu.schema import LocalSettings, QueueSet

ROOT = Path(__file__).parents[2]
DEVICE = "nvidia.com/gpu"

# vision may be reclaimed from and reclaims; speech borrows little; night borrows most, and yields
QUEUES = QueueSet.model_validate({
    "queues": {
        "vision": {
            "cohort": "lab",
            "quotas": {DEVICE: {"nominal": 2, "borrowing_limit": 2, "lending_limit": 1}},
            "preemption": {"within_queue": "lower_priority", "reclaim_within_cohort": "any"},
        },
        "speech": {
            "cohort": "lab",
            "quotas": {DEVICE: {"nominal": 1, "borrowing_limit": 1}},
            "preemption": {"reclaim_within_cohort": "lower_priority"},
        },
        "night": {"cohort": "lab", "quotas": {DEVICE: {"nominal": 1, "borrowing_limit": 2}}},
    },
    "starve_after_s": 5,
})  # fmt: skip
OWN = {queue.name: int(queue.quotas[DEVICE].nominal) for queue in QUEUES.queues}
MOST = {queue.name: OWN[queue.name] + int(queue.quotas[DEVICE].borrowing_limit or 0) for queue in QUEUES.queues}
"""The most devices that a queue may ever hold."""
LENDS = {queue.name: int(lent) for queue in QUEUES.queues if (lent := queue.quotas[DEVICE].lending_limit) is not None}


@dataclass(frozen=True)
class SoakPlace:
    """One local place, all of whose processes can be told from those of others."""

    folder: Path
    devices: int = 4

    @property
    def state(self) -> Path:
        """Its state folder."""
        return self.folder / "state"

    @property
    def runtime(self) -> Path:
        """Where its sockets go."""
        return self.folder / "run"

    @property
    def settings(self) -> LocalSettings:
        """As its clients get them."""
        return LocalSettings(state_folder=self.state, emulated_gpus=self.devices)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its clients."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime), "PYTHONPATH": str(ROOT), "PATH": path}

    def start(self, module: str, *arguments: object, name: str) -> subprocess.Popen[bytes]:
        """Start one of our programs as a client; what it says goes into ``<name>.out``."""
        command = [sys.executable, "-m", f"tests.soak.{module}", self.settings.model_dump_json(), *map(str, arguments)]
        with (self.folder / f"{name}.out").open("ab") as out:
            return subprocess.Popen(command, env=self.variables, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def act(self, *actions: tuple[str, Any], timeout_s: float = 120.0) -> list[list[str] | None]:
        """Have one client do something (`tests.soak.acting`), and return what came of each action.

        Raises:
            AssertionError: it ended early, or not in time; the text holds what it said.
        """
        command = [sys.executable, "-m", "tests.soak.acting", self.settings.model_dump_json()]
        try:
            done = subprocess.run(
                command,
                env=self.variables,
                input=json.dumps(actions),
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{[name for name, _ in actions]} took longer than {timeout_s:g} s") from error
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        ok = done.returncode == 0 and len(answers) == len(actions)
        assert ok, f"exit code {done.returncode} after {len(answers)} of {len(actions)} actions: {done.stderr[-1200:]}"
        return answers

    def do(self, *actions: tuple[str, Any], timeout_s: float = 120.0) -> None:
        """Have one client do something that must succeed.

        Raises:
            AssertionError: an action failed.
        """
        for (name, _), answer in zip(actions, self.act(*actions, timeout_s=timeout_s), strict=True):
            assert answer is None, f"{name}: {answer}"

    # ---- its processes

    def processes(self) -> dict[int, str]:
        """Return {pid: what it is} of every process of this place but its clients: runner, keeper or program."""
        found = {}
        for pid, words, variables in _processes():
            if f"JUPYTER_GPU_STATE={self.state}" in variables:
                is_runner = any(variable.startswith("JUPYTER_GPU_LOCK_FD=") for variable in variables)
                found[pid] = "runner" if is_runner else "program"
            elif "keeper" in words and str(self.state) in " ".join(words):
                found[pid] = "keeper"
        return found

    def kill_keepers(self) -> None:
        """End the Keeper; then, without a client, nobody has the store open."""
        while keepers := [pid for pid, kind in self.processes().items() if kind == "keeper"]:
            for pid in keepers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """End every process of this place at once, Keepers first, as a power cut does."""
        while found := self.processes():
            for pid in sorted(found, key=lambda pid: found[pid] != "keeper"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    # ---- its store, looked at by a process of its own (docs: `Store`)

    def rows(self, statement: str) -> list[list[Any]]:
        """Return what a statement finds in the store, or what it changes there while nobody else has it open."""
        code = (
            "import json, sqlite3, sys\n"
            "c = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)\n"
            "print(json.dumps(c.execute(sys.argv[2]).fetchall()))"
        )
        command = [sys.executable, "-S", "-E", "-c", code, str(self.state / "store.db"), statement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return list(json.loads(done.stdout))


def _processes() -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield (pid, command line, environment) of every process that may be looked at and has not ended."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        yield int(folder.name), words.decode(errors="replace").split("\0"), variables.decode(errors="replace").split("\0")


@contextmanager
def a_place() -> Iterator[SoakPlace]:
    """A new place with `QUEUES`; whatever is left of it at the end is killed."""
    with an_empty_place() as place:
        place.do(("apply", QUEUES.model_dump(mode="json")))
        yield place


@contextmanager
def an_empty_place() -> Iterator[SoakPlace]:
    """A place that was never used."""
    with TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        place = SoakPlace(Path(folder))
        place.runtime.mkdir(mode=0o700)
        try:
            yield place
        finally:
            place.kill_all()


def read_objects(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects among the lines of a file."""
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            with suppress(ValueError):
                yield json.loads(line)
