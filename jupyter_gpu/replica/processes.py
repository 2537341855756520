"""Start a program, and see to it that nothing of it is left."""

from __future__ import annotations

import os
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_EXEC_FAILED = 127


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Let every descendant whose parent dies become a child of this process, so that none escapes `end_descendants`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def start_program(command: list[str], variables: dict[str, str], cwd: str | None, stdout: int, stderr: int) -> int:
    """Start a program as leader of a session of its own, and return its pid.

    It is killed when this process dies, has /dev/null as stdin, and inherits no descriptor but ``stdout`` and ``stderr``.

    Raises:
        OSError: it could not be started; ``filename`` says what of.
    """
    read, write = os.pipe()  # close-on-exec both: the end of the file tells that exec worked
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(command, variables, cwd, stdout, stderr, parent)
        except OSError as error:
            os.write(write, b"%d %s" % (error.errno or 0, os.fsencode(str(error.filename or command[0]))))
        finally:
            os._exit(_EXEC_FAILED)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        number, _, name = failure.partition(b" ")
        raise OSError(int(number), os.strerror(int(number)), os.fsdecode(name))
    return pid


def _become(command: list[str], variables: dict[str, str], cwd: str | None, stdout: int, stderr: int, parent: int) -> None:
    os.setsid()
    if parent != 1:  # a container ends with its first process anyway
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    stdin = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((stdin, stdout, stderr)):
        os.dup2(source, target)
    if cwd:
        os.makedirs(cwd, exist_ok=True)
        os.chdir(cwd)
    os.execvpe(command[0], command, variables)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the group that a program leads; its being gone already is fine."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def reap() -> dict[int, int]:
    """Return {pid: status} of every child that has ended, and let it go."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def end_descendants(id: str) -> None:
    """Kill every descendant that belongs to this Workload, and return when there is none.

    What a program submitted to a local place is a Workload of its own, and runs on. Needs `become_subreaper` (or to be a
    container's first process).
    """
    pause = 0.001
    while True:
        kill_descendants(id)
        reap()
        if not descendants(os.getpid(), id):
            return
        time.sleep(pause)  # a killed process needs a moment; one in an uninterruptible state longer
        pause = min(pause * 2, 0.1)


def kill_descendants(id: str) -> None:
    """Kill every descendant that belongs to this Workload; who has ended is still to be waited for."""
    for pid in descendants(os.getpid(), id):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def descendants(pid: int, id: str) -> list[int]:
    """Return all that a process has started and that belongs to this Workload, also by way of others."""
    found: list[int] = []
    try:
        tasks = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return found
    for task in tasks:
        try:
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                children = [int(child) for child in file.read().split()]
        except OSError:
            continue
        for child in children:
            if not is_anothers(child, id):
                found.append(child)
                found.extend(descendants(child, id))
    return found


def is_anothers(pid: int, id: str) -> bool:
    """Return whether a process is the runner of another Workload, or a place's Keeper."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    named = [variable for variable in variables if variable.startswith(b"JUPYTER_GPU_WORKLOAD=")]
    keeper = any(variable.startswith(b"JUPYTER_GPU_KEEPER_LOCK_FD=") for variable in variables)
    return keeper or (bool(named) and named[0] != b"JUPYTER_GPU_WORKLOAD=" + os.fsencode(id))


def out_of_memory_kills(folder: str | None) -> int:
    """Return how many processes were killed for want of memory: of this container, or with an attempt's folder of this machine.

    It is 0 where the system does not tell.

    Source: Documentation/admin-guide/cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst (memory.oom_control) of Linux;
    /proc/vmstat counts all of the machine.
    """
    containers = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
    for path in ("/proc/vmstat",) if folder else containers:
        try:
            with open(path) as file:
                for line in file:
                    name, _, count = line.partition(" ")
                    if name == "oom_kill":
                        return int(count)
        except (OSError, ValueError):
            continue
    return 0
