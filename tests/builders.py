"""Valid objects for tests, one program for all places, and how to wait for what it does.

A test changes only what it is about: ``a_workload(gpus=2)``. It waits for a condition, never for a time: `until` moves the clock
of a place of virtual time, and elsewhere watches, with a deadline, and does the Keeper's work meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import anyio

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.memory import MemoryBackend
from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import (
    Environment,
    Kind,
    LogLine,
    Phase,
    Port,
    Preemption,
    QueueSpec,
    Quota,
    Resources,
    Selector,
    Stream,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)

T = TypeVar("T")

DEADLINE_S = 30.0
TEND_EVERY_S = 0.05
MARKER = ("JUPYTER_GPU_TEST_RUN", str(os.getpid()))
"""A variable of every program that tests start, so that none is left behind unseen."""

ENVIRONMENT = Environment(variables=dict([MARKER]))
"""Where programs run; a place that needs more (an image) patches it for a test."""

KEYS = {"key": "b7ad3a52-secret", "curve_secretkey": "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"}
"""What a kernel is protected by."""

GREETING = "served by the program\n"

CODE = """
import json, os, signal, sys, time
script = json.loads(sys.argv[1])
if script["ignores_term"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = None
if script["serves"]:
    number = os.environ["JUPYTER_GPU_PORT_" + script["serves"].upper().replace("-", "_")]
    import socket
    listener = socket.create_server(("", int(number)))
def say(file, line):
    print(line, file=file, flush=True)
    if script["pause_s"]:
        time.sleep(script["pause_s"])
for name in script["tells"]:
    say(sys.stdout, name + "=" + os.environ.get(name, ""))
for line in script["prints"]:
    say(sys.stdout, line)
for number in range(1, script["counts"] + 1):
    say(sys.stdout, "line %d" % number)
print(end=script["rest"], flush=True)
for line in script["stderr"]:
    say(sys.stderr, line)
end = time.monotonic() + script["seconds"]
while (left := end - time.monotonic()) > 0:
    if listener is None:
        time.sleep(left)
        continue
    listener.settimeout(left)
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        break
    with connection:
        connection.sendall(script["greeting"].encode())
if script["signal"]:
    os.kill(os.getpid(), getattr(signal, script["signal"]))
sys.exit(script["exit_code"])
""".strip()


def program(
    prints: Sequence[str] = ("hello",),
    *,
    seconds: float = 0,
    exit_code: int = 0,
    serves: str | None = None,
    stderr: Sequence[str] = (),
    signal: str | None = None,
    ignores_term: bool = False,
    counts: int = 0,
    tells: Sequence[str] = (),
    pause_s: float = 0,
    rest: str = "",
    by_rank: Mapping[int, Mapping[str, Any]] | None = None,
) -> tuple[str, ...]:
    """Return a command that does the same at every place: say lines, wait, end.

    Args:
        prints: lines of stdout.
        seconds: how long it stays after the last line.
        exit_code: what it ends with.
        serves: name of a port on which it answers every connection with `GREETING`; it listens before it says a line.
        stderr: lines of stderr, after those of stdout.
        signal: name of the signal it ends itself by.
        ignores_term: whether only KILL ends it early; true from its first line on.
        counts: how many lines ``line 1``, ``line 2``... it prints.
        tells: names of variables that it prints first, as ``NAME=value``.
        pause_s: seconds after each line.
        rest: the last words of stdout, without a line end.
        by_rank: what of this is otherwise for a replica, by its rank; a place of virtual time alone knows it.
    """
    script = {
        "prints": list(prints),
        "seconds": seconds,
        "exit_code": exit_code,
        "serves": serves,
        "greeting": GREETING,
        "stderr": list(stderr),
        "signal": signal,
        "ignores_term": ignores_term,
        "counts": counts,
        "tells": list(tells),
        "pause_s": pause_s,
        "rest": rest,
        "by_rank": by_rank or {},
    }
    return ("python3", "-c", CODE, json.dumps(script))


def a_workload(id: str = "w-1", *, gpus: int = 0, **changes: Any) -> WorkloadSpec:
    """Return a valid request for a program that says hello and runs until it is ended."""
    fields: dict[str, Any] = {
        "id": id,
        "name": id,
        "kind": Kind.BATCH,
        "resources": Resources(gpus=gpus, cpus=0.1, memory_bytes="128MiB"),
        "environment": ENVIRONMENT,
        "command": program(seconds=600),
        "grace_s": 5.0,
    }
    return WorkloadSpec(**fields | changes)


def a_kernel(id: str = "k-1", *, gpus: int = 0, **changes: Any) -> WorkloadSpec:
    """Return a valid request for a KERNEL; its program is none, which is enough for all but talking to it."""
    names = ("shell", "iopub", "stdin", "control", "hb", "parent")
    ports = tuple(Port(name=name, number=number) for number, name in enumerate(names, start=54321))
    return a_workload(id, gpus=gpus, **{"kind": Kind.KERNEL, "ports": ports, "secrets": tuple(sorted(KEYS))} | changes)


def a_queue(
    name: str = "default",
    gpus: int = 2,
    *,
    cohort: str | None = None,
    borrowing_limit: int | None = None,
    lending_limit: int | None = None,
    **preemption: Any,
) -> QueueSpec:
    """Return a queue with devices of nvidia.com/gpu; who must yield to it stands in ``preemption``."""
    quota = Quota(nominal=gpus, borrowing_limit=borrowing_limit, lending_limit=lending_limit)
    return QueueSpec(name=name, cohort=cohort, quotas={"nvidia.com/gpu": quota}, preemption=Preemption(**preemption))


async def shown(backend: Backend, selector: Selector = Selector()) -> dict[str, Workload]:  # noqa: B008 - frozen
    """Return the Workloads as they are now, by id."""
    async with aclosing(backend.watch(selector)) as steps:
        return {workload.spec.id: workload for workload in (await anext(steps)).workloads}


async def status_of(backend: Backend, id: str) -> WorkloadStatus:
    """Return how a Workload stands now."""
    return (await shown(backend, Selector(ids=frozenset({id}))))[id].status


async def phase_of(backend: Backend, id: str) -> Phase:
    """Return the phase of a Workload now."""
    return (await status_of(backend, id)).phase


async def until(
    backend: Backend, condition: Callable[[Mapping[str, Workload]], T | None], *, deadline_s: float = DEADLINE_S
) -> T:
    """Wait until something is true of the Workloads (by id), and return what the condition returned.

    Raises:
        AssertionError: it did not come true before the deadline, or nothing more happens at a place of virtual time.
    """
    workloads: dict[str, Workload] = {}
    if isinstance(backend, MemoryBackend):
        while True:
            workloads = await shown(backend)
            if result := condition(workloads):
                return result
            if backend.advance_to_next() is None:
                raise AssertionError(f"nothing more happens: {_summary(workloads)}")
    with anyio.move_on_after(deadline_s):
        async with time_passes(backend), aclosing(backend.watch()) as steps:
            async for changes in steps:
                kept = {} if changes.complete else {id: kept for id, kept in workloads.items() if id not in changes.removed}
                workloads = kept | {workload.spec.id: workload for workload in changes.workloads}
                if result := condition(workloads):
                    return result
    raise AssertionError(f"not true within {deadline_s:g} s: {_summary(workloads)}")


def _summary(workloads: Mapping[str, Workload]) -> str:
    stand = (
        f"{id} is {w.status.phase}" + (f" ({w.status.reason.code})" if w.status.reason else "") for id, w in workloads.items()
    )
    return ", ".join(stand) or "there is no workload"


async def reached(backend: Backend, id: str, *phases: Phase) -> WorkloadStatus:
    """Wait until a Workload is in one of these phases, and return how it stands then."""

    def there(workloads: Mapping[str, Workload]) -> WorkloadStatus | None:
        workload = workloads.get(id)
        return workload.status if workload and workload.status.phase in phases else None

    return await until(backend, there)


async def running(backend: Backend, id: str) -> WorkloadStatus:
    """Wait until a Workload is RUNNING, and return how it stands then."""
    return await reached(backend, id, Phase.RUNNING)


async def finished(backend: Backend, id: str) -> WorkloadStatus:
    """Wait until a Workload has ended, and return how it stands then."""
    return await reached(backend, id, *(phase for phase in Phase if phase.is_final))


async def gone(backend: Backend, id: str) -> None:
    """Wait until a Workload's story is forgotten."""
    await until(backend, lambda workloads: id not in workloads)


@asynccontextmanager
async def time_passes(backend: Backend) -> AsyncIterator[None]:
    """Let time pass, and a Keeper work, while the context is open; for whoever waits in it."""
    error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_pass_time, backend)
        try:
            yield
        except Exception as caught:  # noqa: BLE001 - raised again below, where no group wraps it
            error = caught
        tasks.cancel_scope.cancel()
    if error:
        raise error


async def _pass_time(backend: Backend) -> None:
    while True:
        if not isinstance(backend, MemoryBackend):
            await backend.tend(datetime.now(UTC))
            await anyio.sleep(TEND_EVERY_S)
        elif any(not workload.status.phase.is_final for workload in (await shown(backend)).values()):
            backend.advance_to_next()  # but not up to where the stories of the ended are forgotten
        else:
            await anyio.sleep(0.001)


async def log_of(backend: Backend, id: str, **options: Any) -> list[LogLine]:
    """Return all lines of a log; with ``follow``, once it has ended."""
    with anyio.fail_after(DEADLINE_S):
        async with time_passes(backend) if options.get("follow") else _time_stands_still():
            return [line async for line in backend.logs(id, **options)]
    raise AssertionError("unreachable")


@asynccontextmanager
async def _time_stands_still() -> AsyncIterator[None]:
    yield


async def said(backend: Backend, id: str, text: str) -> LogLine:
    """Wait until a replica has said this line, and return it."""
    if isinstance(backend, MemoryBackend):
        while True:
            for line in await log_of(backend, id):
                if line.text == text:
                    return line
            assert backend.advance_to_next(), f"nothing more happens, and nobody said {text!r}"
    with anyio.fail_after(DEADLINE_S):
        async with time_passes(backend), aclosing(backend.logs(id, follow=True)) as lines:
            async for line in lines:
                if line.text == text:
                    return line
    raise AssertionError(f"it ended without saying {text!r}")


def texts(lines: Sequence[LogLine], *streams: Stream) -> list[str]:
    """Return the plain lines of a log, of these streams or of all."""
    wanted = streams or (Stream.STDOUT, Stream.STDERR)
    return [line.text for line in lines if line.stream in wanted]


def reports(lines: Sequence[LogLine], kind: str) -> list[dict[str, Any]]:
    """Return the reports of one type in a log."""
    return [line.report for line in lines if line.report and line.report.get("report") == kind]


async def end_all(backend: Backend) -> None:
    """End every Workload of a place at once, and wait until they have ended."""
    for id, workload in (await shown(backend)).items():
        if not workload.status.phase.is_final:
            with suppress(NotFoundError):  # it ended and was forgotten meanwhile
                await backend.cancel(id, grace_s=0)
    await until(backend, lambda workloads: all(workload.status.phase.is_final for workload in workloads.values()))
