"""The first process of a replica: it starts the program, passes signals on, and tells how it ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from functools import partial

from . import after, processes, report
from .loop import Loop

TYPE_CHECKING = False  # typing itself would cost the start of every kernel some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .memory import Cause
    from .sampling import Sampler

PROTOCOL = 1
_OWN_VARIABLES = ("JUPYTER_GPU_REPLICA", "JUPYTER_GPU_LOCK_FD")
_INTERRUPTED_EXIT = 128 + signal.SIGTERM
_LINGERERS = "/var/lib/systemd/linger"  # without it no account does, and nothing more needs to be loaded to know that
_PREEMPTED = "end.preempted"
_AGAIN_S = 1.0
_END_AGAIN_S = 0.2
_END_WITHIN_S = 5.0


class Replica(Loop):
    """One program and what stands beside it, in one loop."""

    looks_after_s = 0.25
    """When to look for the first time at what the program uses."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        self.spec = spec
        self.folder = spec.get("folder")
        self.log: report.FolderLog | report.ContainerLog = report.FolderLog(self.folder) if self.folder else report.ContainerLog()
        self.devices: list[str] = _given_devices(spec)
        self.pid: int | None = None
        self.node = socket.gethostname()
        self.stopping: dict[str, Any] | None = None  # the reason, once somebody wants the end
        self.result: dict[str, Any] | None = None  # the end report's fields, once there is one
        self._pipes: dict[int, Callable[[], bool]] = {}  # near ends of the program's stdout and stderr, and what reads them
        self.exceeded: Cause | None = None  # what is to be said of a program that was killed for its memory
        self.peak_bytes = 0
        self.began = time.monotonic()
        self.limit: int | None = spec.get("memory_bytes") if spec.get("memory_limits") in ("auto", "scope", "watch") else None
        self.is_scoped = False
        self._sampler: Sampler | None = None
        self.killed = False  # whether it was us who sent KILL
        self.oom_kills = (processes.out_of_memory_kills(self.folder),) * 2  # some time ago, and at the last sample
        self.run_folder = private_folder(spec["run_folder"])

    # ---- what a kind of program does its own way

    def started(self) -> None:
        """Do what follows the first start of the program."""

    def ended(self, status: int) -> None:
        """Take the program's end, as ``os.waitpid`` told it."""
        self.finish(*self.told(*report.end_of(status)))

    def stop(self) -> None:
        """Ask the program to end, also for another reason than before: TERM now, KILL after the grace period."""
        assert self.stopping is not None
        if self.pid is None:
            self.finish("end.completed", "it had ended", 0, None, {})
            return
        processes.signal_group(self.pid, signal.SIGTERM)
        self.at("grace", self.patience_s(), self.kill)

    def patience_s(self) -> float:
        """Return the seconds until the program that must end is killed; a later wish makes them fewer, never more."""
        assert self.stopping is not None
        asked: float = self.stopping.get("grace_s", self.spec["grace_s"])
        left = self.left_s("grace")
        return asked if left is None else min(asked, max(0.0, left))

    # ---- from its start to its end

    def run(self) -> int:
        """Run the program to its end and return the exit code of this process."""
        self.catch_signals()
        processes.become_subreaper()
        if why := self._choose_limit():
            words = "this place limits memory by a scope, which can't be had: %s; memory_limits 'auto' does without" % why
            self.finish("start.memory_limit", words, None, None, {})
            return self._close()
        try:
            self.start()
        except OSError as error:
            self._fail_to_start(error)
        else:
            self._announce()
            self.started()
            self.at("looks", self.looks_after_s, self._look)
        if limit := self.spec.get("max_runtime_s"):
            self.at("max_runtime", limit, self._out_of_time)
        if self._wish() is not None:
            self._terminate("SIGTERM")
        while self.result is None:
            self.step()
        return self._close()

    def start(self) -> None:
        """Start the program, also again.

        Raises:
            OSError: it could not be started.
        """
        command, variables = self.command(), self.variables()
        if self.is_scoped and self.limit:
            from . import limits

            command, variables = limits.scope_command(command, variables, self.limit)
        self.killed, self.exceeded = False, None
        if isinstance(self.log, report.ContainerLog):
            self.pid = processes.start_program(command, variables, self.spec.get("cwd"), 1, 2)
            return
        readers, writers = zip(os.pipe(), os.pipe())
        try:
            self.pid = processes.start_program(command, variables, self.spec.get("cwd"), *writers)
        except OSError:
            for descriptor in readers:
                os.close(descriptor)
            raise
        finally:
            for descriptor in writers:
                os.close(descriptor)
        for stream, descriptor in zip(("stdout", "stderr"), readers):
            os.set_blocking(descriptor, False)
            self._pipes[descriptor] = partial(self._output, descriptor, stream)
            self.listen(descriptor, self._pipes[descriptor])

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        command: list[str] = self.spec["command"]
        return command

    def variables(self) -> dict[str, str]:
        """Return the program's environment."""
        variables: dict[str, str] = (
            {} if self.spec.get("clean") else {k: v for k, v in os.environ.items() if k not in _OWN_VARIABLES}
        )
        variables.update(self.spec["variables"])
        variables["JUPYTER_GPU_DEVICES"] = ",".join(self.devices)
        if self.spec.get("devices") is not None:
            variables[self.spec["visible_variable"]] = ",".join(self.devices)
        for name, place in self.spec["ports"].items():
            variables["JUPYTER_GPU_PORT_" + name.upper().replace("-", "_")] = str(place)
        return variables

    def kill(self) -> None:
        """End the program at once."""
        if self.pid is not None:
            self.killed = True
            processes.signal_group(self.pid, signal.SIGKILL)

    def note_memory(self, used_bytes: int) -> None:
        """Remember the most that the program had."""
        self.peak_bytes = max(self.peak_bytes, used_bytes)

    def note_kills(self) -> None:
        """Remember how many processes of this machine died for want of memory: only a new one can be the program."""
        if self.folder:
            self.oom_kills = (self.oom_kills[1], processes.out_of_memory_kills(self.folder))

    def told(self, code: str, message: str, exit_code: int | None, signal_: str | None, facts: dict[str, Any]) -> report.End:
        """Return what the program did, with what memory has to say to it."""
        kills = processes.out_of_memory_kills(self.folder)
        if code != "end.completed" and (self.exceeded or kills > self.oom_kills[0]):
            from . import memory

            if cause := memory.cause(self, signal_):
                code, (message, facts) = memory.CODE, cause
        self.oom_kills = (kills, kills)
        return code, message, exit_code, signal_, facts

    def finish(self, code: str, message: str, exit_code: int | None, signal_: str | None, facts: dict[str, Any]) -> None:
        """Settle the end: the reason is why somebody wanted it, else what the program did."""
        if self.stopping:
            facts = {"program": message}
            code, message = self.stopping["code"], self.stopping["message"]
        self.result = {"code": code, "message": message, "exit_code": exit_code, "signal": signal_, "facts": dict(facts)}

    def signalled(self, numbers: set[int]) -> None:
        """Take the signals that have come: first a wish for the end, so that it does not look like the program's own."""
        if signal.SIGTERM in numbers or signal.SIGHUP in numbers:
            self._terminate("SIGTERM" if signal.SIGTERM in numbers else "SIGHUP")
        if signal.SIGCHLD in numbers:
            self._children_ended()

    def _children_ended(self) -> None:
        for pid, status in processes.reap().items():
            if pid == self.pid:
                self.pid = None
                self.ended(status)

    def _terminate(self, by: str) -> None:
        if self.result:
            return
        wish = self._wish()
        if not self.stopping:
            self.stopping = wish or {"code": "end.terminated", "message": "it was told to end from outside, by %s" % by}
        elif self.stopping["code"] == _PREEMPTED and wish and wish["code"] != _PREEMPTED:
            self.stopping = wish  # who had to yield, and would be tried again or saved, is to end for good
        else:
            return
        self.stop()

    def _wish(self) -> dict[str, Any] | None:
        """Return the reason that the backend left beside us, or None."""
        if not self.folder:
            return None
        try:
            with open(os.path.join(self.folder, "stop.json")) as file:
                wish = json.load(file)
        except (OSError, ValueError):  # programs of this account might write there too
            return None
        return wish if isinstance(wish, dict) and "code" in wish and "message" in wish else None

    def _out_of_time(self) -> None:
        if self.stopping or self.result:
            return
        self.stopping = {
            "code": "end.max_runtime",
            "message": "it ran longer than its limit of %g s"
            % (self.spec.get("max_runtime_in_all_s") or self.spec["max_runtime_s"]),
        }
        self.stop()

    def _fail_to_start(self, error: OSError) -> None:
        what = error.filename or self.spec["command"][0]
        self.finish("start.command", "%s could not be started: %s" % (what, error.strerror), None, None, {})

    def _announce(self) -> None:
        self.log.report(report.frame("started", devices=self.devices, node=self.node, pid=self.pid))
        self.write_state()
        if isinstance(self.log, report.FolderLog):
            self.log.reserve()

    def write_state(self) -> None:
        """Tell a local backend that we are up, and which process the program is."""
        if self.folder:
            state = {"pid": os.getpid(), "started": time.time(), "program": {"pid": self.pid}}
            try:
                report.write_whole(os.path.join(self.folder, "state.json"), state)
            except OSError:  # a full disk: the backend is told when there is room again
                self.at("state", _AGAIN_S, self.write_state)

    def _output(self, descriptor: int, stream: str) -> bool:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        assert isinstance(self.log, report.FolderLog)
        self.log.feed(stream, data)
        if not data:
            self.ignore(descriptor)
            del self._pipes[descriptor]
            os.close(descriptor)
        return bool(data)

    def _close(self) -> int:
        processes.end_descendants(self.spec["id"])  # also closes the far ends of our pipes
        for read in list(self._pipes.values()):
            while read():
                pass
        assert self.result is not None
        self._add_up(self.result["facts"])
        self.log.report(report.frame("end", **self.result))
        shutil.rmtree(self.run_folder, ignore_errors=True)
        self._tell_the_end()
        after.start(self.spec)
        if self.result["code"] == "end.completed":
            return 0
        return int(self.result["exit_code"] or _INTERRUPTED_EXIT)

    def _choose_limit(self) -> str:
        """Decide which way memory is limited, and return why it can't be where nothing may start without; else nothing."""
        mode = self.spec.get("memory_limits")
        if self.limit and (mode == "scope" or (mode == "auto" and os.path.isdir(_LINGERERS))):
            from . import limits

            way, why = limits.way(mode)
            self.is_scoped = way == limits.SCOPE
            if mode == "scope" and not self.is_scoped:
                return why
        return ""

    def _look(self) -> None:
        sampler = self._make_sampler()
        if sampler is not None:
            sampler.start()

    def _make_sampler(self) -> Sampler | None:
        try:
            from .sampling import Sampler
        except (ImportError, OSError):  # somebody removed what we were started from
            return None
        self._sampler = Sampler(self)
        return self._sampler

    def _add_up(self, facts: dict[str, Any]) -> None:
        sampler = self._sampler or self._make_sampler()
        if sampler is None:
            return
        totals = sampler.close()
        if self.peak_bytes:
            facts.setdefault("peak_memory_bytes", self.peak_bytes)
        if not self.folder:
            facts["usage"] = totals

    def _tell_the_end(self) -> None:
        deadline = time.monotonic() + _END_WITHIN_S
        while True:
            try:
                self.log.end({"report": "end", **(self.result or {})})
                return
            except FileNotFoundError:  # the folder is gone, and with it whoever wants to know
                return
            except OSError:  # a full disk
                if time.monotonic() > deadline:
                    return
                time.sleep(_END_AGAIN_S)


def private_folder(path: str) -> str:
    """Make a folder that only this account can enter, and return its path; below ``path`` where that is open to others."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.stat(path).st_mode & 0o077:
        path = os.path.join(path, "private")
        os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def _given_devices(spec: dict[str, Any]) -> list[str]:
    devices: list[str] | None = spec.get("devices")
    if devices is None:
        from . import plugin

        devices = plugin.devices()
    return devices


def main() -> None:
    """Run the replica that ``JUPYTER_GPU_REPLICA`` specifies."""
    text = os.environ["JUPYTER_GPU_REPLICA"]
    if not text.startswith("{"):
        with open(text) as file:
            text = file.read()
    spec = json.loads(text)
    if spec["protocol"] != PROTOCOL:
        sys.exit("this replica speaks protocol %d, its specification %s" % (PROTOCOL, spec["protocol"]))
    if "JUPYTER_GPU_LOCK_FD" in os.environ:
        os.set_inheritable(int(os.environ["JUPYTER_GPU_LOCK_FD"]), False)
    if spec["kind"] == "kernel":
        from .kernel import KernelParent

        code = KernelParent(spec).run()
    else:
        code = Replica(spec).run()
    sys.stdout.flush()
    os._exit(code)  # nothing is left to do, and an interpreter's own way out costs 10 ms
