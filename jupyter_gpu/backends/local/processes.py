"""Processes of ours: starting a runner or a Keeper, and finding and ending what one left behind.

Every process of a Workload has the same three variables in its environment, by which it is found in /proc. Where there is no
/proc (macOS) nothing is found: there a runner ends what it started by itself, unless it is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from jupyter_gpu.backends.local.state import AttemptFolder, StateFolder

WORKLOAD, ATTEMPT, STATE = "JUPYTER_GPU_WORKLOAD", "JUPYTER_GPU_ATTEMPT", "JUPYTER_GPU_STATE"
KEEPER_LOCK = "JUPYTER_GPU_KEEPER_LOCK_FD"

_PROC = Path("/proc")
_KILL_S = 5.0  # a killed process in an uninterruptible state takes longer; the next look waits for it
_KEEPER_LOG_BYTES = 1 << 20
_LINKER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # some Pythons do not start without


def markers(state: StateFolder, id: str, attempt: int) -> dict[str, str]:
    """Return the variables by which every process of an attempt is found."""
    return {WORKLOAD: id, ATTEMPT: str(attempt), STATE: str(state.path)}


def start_runner(archive: Path, folder: AttemptFolder, marks: Mapping[str, str], lock: int) -> None:
    """Start a runner that outlives this process; ``lock`` is the descriptor that it holds for life.

    Raises:
        OSError: there is no room for another process, or no Python any more.
    """
    linker = {name: os.environ[name] for name in _LINKER_VARIABLES if name in os.environ}
    variables = {"JUPYTER_GPU_REPLICA": str(folder.replica), "JUPYTER_GPU_LOCK_FD": str(lock), **marks, **linker}
    _start([sys.executable, "-S", "-E", str(archive)], variables, folder.runner_log, pass_fds=(lock,))


def start_keeper(command: Sequence[str], variables: Mapping[str, str], log: Path, lock: int) -> int:
    """Start a Keeper that outlives this process, with these variables and no others, and return its pid.

    ``lock`` is the descriptor of the Keeper's lock, which it holds from the first moment on.

    Raises:
        OSError: it could not be started.
    """
    if log.exists() and log.stat().st_size > _KEEPER_LOG_BYTES:
        log.unlink()
    return _start(command, {**variables, KEEPER_LOCK: str(lock)}, log, pass_fds=(lock,))


def _start(command: Sequence[str], variables: Mapping[str, str], log: Path, *, pass_fds: tuple[int, ...] = ()) -> int:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(variables),
            cwd="/",
            start_new_session=True,
            pass_fds=pass_fds,
        )
    finally:
        os.close(output)
    threading.Thread(target=child.wait, name=f"reaper of {child.pid}", daemon=True).start()
    return child.pid


def attempt_of(state: StateFolder, pid: int) -> tuple[str, int] | None:
    """Return the id and the attempt of the Workload of this place that a process belongs to; None if it belongs to none."""
    variables = dict(variable.partition(b"=")[::2] for variable in _environment(pid).split(b"\0"))
    found = [os.fsdecode(variables.get(name.encode(), b"")) for name in (STATE, WORKLOAD, ATTEMPT)]
    return (found[1], int(found[2])) if found[0] == str(state.path) and found[2].isdecimal() else None


def end_strays(state: StateFolder, living: Collection[tuple[str, int]]) -> bool:
    """Kill what belongs to Workloads of this place that are not among the living (id and attempt), but for this process' own.

    Returns:
        Whether it is gone; this waits some seconds for that.
    """
    spared = {*living, attempt_of(state, os.getpid())}
    return _end(lambda: (pid for pid in _pids() if (attempt := attempt_of(state, pid)) is not None and attempt not in spared))


def end_all(marks: Mapping[str, str]) -> bool:
    """Kill every process with these variables, and return whether they are gone; waits some seconds for that."""
    return _end(lambda: _marked(marks))


def _end(find: Callable[[], Iterable[int]]) -> bool:
    deadline, pause = time.monotonic() + _KILL_S, 0.001
    killed: set[int] = set()
    while found := set(find()) | set(filter(_is_ending, killed)):
        if time.monotonic() > deadline:
            return False
        for pid in found - killed:
            send(pid, signal.SIGKILL)
        killed |= found
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
    return True


def kill(marks: Mapping[str, str], *, but: int) -> None:
    """Kill every process with these variables, except one."""
    for pid in _marked(marks):
        if pid != but:
            send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Send a signal to a process; its being gone is fine."""
    with suppress(ProcessLookupError, PermissionError):  # the latter: a pid that is somebody else's by now
        os.kill(pid, number)


def _marked(marks: Mapping[str, str]) -> Iterator[int]:
    wanted = {os.fsencode(f"{name}={value}") for name, value in marks.items()}
    return (pid for pid in _pids() if wanted <= set(_environment(pid).split(b"\0")))


def _pids() -> Iterator[int]:
    """Yield the pids of all other processes; none where there is no /proc."""
    names = (folder.name for folder in _PROC.iterdir()) if _PROC.is_dir() else ()
    return (int(name) for name in names if name.isdecimal() and int(name) != os.getpid())


def _is_ending(pid: int) -> bool:
    """Return whether a killed process still has something to give back, like a device: its environment goes first."""
    try:
        state = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def _environment(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # gone, or another account's
        return b""
