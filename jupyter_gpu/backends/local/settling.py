"""Bring what is STARTING or RUNNING into line with its runner. Only its lock tells whether a runner lives."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

from jupyter_gpu.backends.local import locks, processes, rows, starting
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.state import AttemptFolder, read_object, write_whole
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import Phase, Reason

_LATE_S = 0.5  # a runner kills its program by itself when the grace period is over; we do where it does not
_OVERDUE_S = 10.0  # what a runner may take to end beyond the grace period of its program
_AGAIN_S = 0.5
_LOG_TAIL = 500

_REBOOT = Reason(code="end.reboot", message="the machine was restarted while it ran")
_LOST = Reason(code="end.lost", message="the runner was killed, and what it had started was ended")


def settle(site: Site, row: Row, moment: Moment) -> float | None:
    """Write what became of an attempt, and return when (boot clock) to look again; None if nothing is to be waited for."""
    folder = site.state.attempt(row.id, row.attempt)
    if not locks.is_free(folder.lock):
        return _look_after(site, row, folder, moment)
    if is_unstarted(row, folder) and row.boot_id == moment.boot_id:
        return None
    if row.boot_id != moment.boot_id:
        return finish(site, row, moment, _REBOOT)
    return finish(site, row, moment, _LOST if folder.state.exists() else _never_began(folder))


def cancel(site: Site, id: str, reason: Reason, grace_s: float | None, moment: Moment) -> bool:
    """Write down that an attempt must end, and tell its runner; return whether it was QUEUED, and has ended by that.

    Raises:
        NotFoundError: no such Workload.
    """
    with site.store.transaction() as connection:
        row = rows.get(site.store, id, site.name)
        if row.is_final:
            return False
        if row.phase == Phase.QUEUED:
            rows.end(connection, row, reason, moment)
        else:
            patience_s = row.grace_s if grace_s is None else grace_s
            kill = moment.boot_s + patience_s + _LATE_S
            if row.stop is None:
                wish = {**json.loads(rows.json_of(reason)), "grace_s": patience_s}
                rows.change(connection, id, row.attempt, stop=json.dumps(wish), reason=_stopping(reason), kill_boot_s=kill)
            elif grace_s is not None and row.kill_boot_s is not None:  # the first reason stays; patience may end sooner
                rows.change(connection, id, row.attempt, kill_boot_s=min(kill, row.kill_boot_s))
    if row.phase == Phase.QUEUED:
        starting.clear(site.state, row)
        return True
    tell_to_stop(site, rows.get(site.store, id, site.name))
    return False


def is_unstarted(row: Row, folder: AttemptFolder) -> bool:
    """Return whether whoever admitted it did not come to start it."""
    return row.phase == Phase.STARTING and not row.spawned and not folder.state.exists() and not folder.end.exists()


def start(site: Site, row: Row, moment: Moment) -> float | None:
    """Start an admitted attempt, and return when (boot clock) to look again."""
    if wish := row.stop_reason:
        return finish(site, row, moment, wish)
    try:
        starting.start(site.state, row, site.keeper)
    except (OSError, InvalidRequestError) as error:
        finish(site, row, moment, Reason(code="start.failed", message=f"its runner could not be started: {error}"))
        return None
    _change(site, row, spawned=1)
    return (row.admitted_boot_s or moment.boot_s) + row.start_timeout_s


def tell_to_stop(site: Site, row: Row) -> None:
    """Pass the wish for its end on to the runner: the file first, then TERM if it is up; else it will read the file itself."""
    if row.stop is None or row.stop_sent:
        return
    folder = site.state.attempt(row.id, row.attempt)
    wish = json.loads(row.stop)
    write_whole(folder.stop, {name: wish[name] for name in ("code", "message", "grace_s")})
    pid = _pid(folder)
    if pid is not None and not locks.is_free(folder.lock):  # while the lock is held the pid is the runner's
        processes.send(pid, signal.SIGTERM)
        _change(site, row, stop_sent=1)


def finish(site: Site, row: Row, moment: Moment, otherwise: Reason) -> float | None:
    """Write the final phase once nothing is left of an attempt, and return when (boot clock) to try again if something is.

    Args:
        site: the place.
        row: an attempt whose runner is gone.
        moment: now.
        otherwise: why it ended, if it left no report of that.
    """
    if row.boot_id == moment.boot_id and not processes.end_all(processes.markers(site.state, row.id, row.attempt)):
        words = "it has ended, but the kernel does not let go of some of its processes yet"
        _change(site, row, reason=Reason(code="end.stopping", message=words))
        return moment.boot_s + _AGAIN_S
    folder = site.state.attempt(row.id, row.attempt)
    began = read_object(folder.state) if row.started is None else None
    reason, ended = _end_of(row, folder, otherwise, moment)
    starting.clear(site.state, row)
    with site.store.transaction() as connection:
        if began:
            rows.change(connection, row.id, row.attempt, started=_started(began, moment))
        rows.end(connection, row, reason, moment, ended)
    return None


def _look_after(site: Site, row: Row, folder: AttemptFolder, moment: Moment) -> float | None:
    """See to an attempt whose runner lives."""
    began = read_object(folder.state)
    if began is not None and row.phase == Phase.STARTING:
        columns = {} if row.stop else {"reason": None}
        _change(site, row, phase=Phase.RUNNING.value, spawned=1, started=_started(began, moment), **columns)
    if row.stop:
        tell_to_stop(site, row)
        return _insist(site, row, folder, moment)
    due = (row.admitted_boot_s or moment.boot_s) + row.start_timeout_s
    if began is not None or moment.boot_s < due:
        return None if began else due
    late = Reason(code="start.timeout", message=f"it did not start within {row.start_timeout_s:g} s")
    return _force(site, row, folder, moment, late)


def _insist(site: Site, row: Row, folder: AttemptFolder, moment: Moment) -> float | None:
    """Kill what is still there after the grace period: first the program, so that its runner can report it; later that too."""
    kill = moment.boot_s if row.kill_boot_s is None else row.kill_boot_s
    if moment.boot_s < kill:
        return kill
    if moment.boot_s < kill + _OVERDUE_S and (pid := _pid(folder)) is not None:
        processes.kill(processes.markers(site.state, row.id, row.attempt), but=pid)
        return moment.boot_s + _AGAIN_S
    return _force(site, row, folder, moment, _LOST)


def _force(site: Site, row: Row, folder: AttemptFolder, moment: Moment, otherwise: Reason) -> float | None:
    """End a runner that does not end by itself."""
    processes.end_all(processes.markers(site.state, row.id, row.attempt))
    if locks.is_free(folder.lock):
        return finish(site, row, moment, otherwise)
    if (pid := _pid(folder)) is not None:  # where there is no /proc
        processes.send(pid, signal.SIGKILL)
    return moment.boot_s + _AGAIN_S


def _end_of(row: Row, folder: AttemptFolder, otherwise: Reason, moment: Moment) -> tuple[Reason, float]:
    """Return why an attempt ended, and when in seconds since 1970."""
    report, wish = _report(folder), row.stop_reason
    if report is None:
        return wish or otherwise, moment.wall_s
    told = {"exit_code": report.get("exit_code"), "signal": report.get("signal"), **(report.get("facts") or {})}
    facts = {name: value for name, value in told.items() if value is not None}
    # what died of TERM or KILL just when somebody wanted its end died of that, although its runner knew of no wish yet
    if wish and report["code"] == "end.signal" and report.get("signal") in ("SIGTERM", "SIGKILL"):
        report = {"code": wish.code, "message": wish.message}
    if wish and wish.code == report["code"]:
        facts |= wish.facts
    return Reason(code=report["code"], message=report["message"], facts=facts), folder.end.stat().st_mtime


def _report(folder: AttemptFolder) -> dict[str, Any] | None:
    """Return the end report, if there is one that can be read: programs of this account might write there too."""
    report = read_object(folder.end)
    if (
        report is None
        or not re.fullmatch(r"[a-z]+\.[a-z_]+", str(report.get("code")))
        or not isinstance(report.get("message"), str)
    ):
        return None
    return report if isinstance(report.get("facts") or {}, dict) else None


def _stopping(reason: Reason) -> Reason:
    return Reason(code="end.stopping", message=f"it is ending: {reason.message}", facts={"because": reason.code})


def _never_began(folder: AttemptFolder) -> Reason:
    try:
        said = folder.runner_log.read_text(errors="replace")[-_LOG_TAIL:].strip()
    except FileNotFoundError:
        said = ""
    words = "its runner ended before the program was started"
    return Reason(code="start.failed", message=f"{words}: {said}" if said else words)


def _pid(folder: AttemptFolder) -> int | None:
    pid = (read_object(folder.state) or {}).get("pid")
    return pid if isinstance(pid, int) and pid > 1 else None


def _started(began: dict[str, Any], moment: Moment) -> float:
    started = began.get("started")
    return float(started) if isinstance(started, int | float) else moment.wall_s


def _change(site: Site, row: Row, **columns: Any) -> None:
    with site.store.transaction() as connection:
        rows.change(connection, row.id, row.attempt, Phase.STARTING, Phase.RUNNING, **columns)
