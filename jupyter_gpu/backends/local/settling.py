"""Bring what is STARTING or RUNNING into line with its runner. Only its lock tells whether a runner lives."""

from __future__ import annotations

import errno
import json
import logging
import re
import signal
import sqlite3
from dataclasses import dataclass
from typing import Any

from jupyter_gpu.backends.local import accounting, locks, processes, retrying, rows, starting, stories, writing
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.rows import Row
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.state import AttemptFolder, read_object, write_whole
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.queueing.retrying import PREEMPTED
from jupyter_gpu.schema import Phase, Reason

_LATE_S = 0.5  # a runner kills its program by itself when the grace period is over; we do where it does not
_OVERDUE_S = 10.0  # what a runner may take to end beyond the grace period of its program
_AGAIN_S = 0.5
_LOG_TAIL = 500
_PASSES = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
"""What a machine may have too little of just now."""

_log = logging.getLogger(__name__)

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
            writing.end(connection, row, reason, moment)
        elif row.stop is None or _yields(row) or grace_s is not None:
            wish_end(connection, row, reason, row.grace_s if grace_s is None else grace_s, moment)
    if row.phase == Phase.QUEUED:
        starting.clear(site.state, row)
        return True
    tell_to_stop(site, rows.get(site.store, id, site.name))
    return False


def wish_end(connection: sqlite3.Connection, row: Row, reason: Reason, grace_s: float, moment: Moment) -> None:
    """Write down that what is STARTING or RUNNING must end; `tell_to_stop` does the rest.

    The first reason stays, but for one that had to yield, and would come back: who ends that, ends it for good. Patience may end
    sooner, never later.
    """
    kill = moment.boot_s + grace_s + _LATE_S
    if row.kill_boot_s is not None:
        kill = min(kill, row.kill_boot_s)
    if row.stop is None or (_yields(row) and reason.code != PREEMPTED):
        wish = {**json.loads(writing.json_of(reason)), "grace_s": grace_s}
        writing.change(
            connection, row.id, row.attempt, stop=json.dumps(wish), stop_sent=0, reason=_stopping(reason), kill_boot_s=kill
        )
    else:
        writing.change(connection, row.id, row.attempt, kill_boot_s=kill)


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
        due = (row.admitted_boot_s or moment.boot_s) + row.start_timeout_s
        if getattr(error, "errno", None) in _PASSES and moment.boot_s < due:
            _log.warning("%s, attempt %d: %s", row.id, row.attempt, error)
            return moment.boot_s + _AGAIN_S
        finish(site, row, moment, Reason(code="start.failed", message=f"its runner could not be started: {error}"))
        return None
    _change(site, row, spawned=1)
    return (row.admitted_boot_s or moment.boot_s) + row.start_timeout_s


def tell_to_stop(site: Site, row: Row) -> float | None:
    """Pass the wish for its end on to the runner: the file first, then TERM if it is up; else it will read the file itself.

    Returns:
        When (boot clock) to look whether it has heeded that.
    """
    if row.stop is None or row.stop_sent:
        return row.kill_boot_s
    folder = site.state.attempt(row.id, row.attempt)
    wish = json.loads(row.stop)
    write_whole(folder.stop, {name: wish[name] for name in ("code", "message", "grace_s")})
    pid = _pid(folder)
    if pid is not None and not locks.is_free(folder.lock):  # while the lock is held the pid is the runner's
        processes.send(pid, signal.SIGTERM)
        _change(site, row, stop_sent=1)
    return row.kill_boot_s


def finish(site: Site, row: Row, moment: Moment, otherwise: Reason) -> float | None:
    """Write the final phase once nothing is left of an attempt, and return when (boot clock) to try again if something is.

    Args:
        site: the place.
        row: an attempt whose runner is gone.
        moment: now.
        otherwise: why it ended, if it left no report of that.
    """
    if not processes.end_all(processes.markers(site.state, row.id, row.attempt)):
        words = "it has ended, but the kernel does not let go of some of its processes yet"
        _change(site, row, reason=Reason(code="end.stopping", message=words))
        return moment.boot_s + _AGAIN_S
    end = _end(row, site.state.attempt(row.id, row.attempt), otherwise, moment)
    if end.failures is None:
        retrying.give_up(site.state, row)  # its end may have been decided otherwise before
        starting.clear(site.state, row)
    else:
        retrying.prepare(site.state, row)
    if not _write(site, row, end, moment):
        return moment.boot_s
    if end.failures is not None:
        starting.clear(site.state, row)
    return None


@dataclass(frozen=True)
class _End:
    """How an attempt ended, and what follows."""

    reason: Reason
    started: float | None
    """When it became RUNNING, in seconds since 1970."""
    ended: float
    held_s: float
    """How long it held what it had."""
    ran_s: float
    """How long it and those before it ran."""
    failures: int | None
    """How many retries have been used when it is tried again; None if it is not."""


def _end(row: Row, folder: AttemptFolder, otherwise: Reason, moment: Moment) -> _End:
    reason, ended = _end_of(row, folder, otherwise, moment)
    began, held_s = read_object(folder.state), accounting.held_s(row, ended, moment)
    started = _started(began, moment) if row.started is None and began else row.started
    ran_s = row.ran_s + max(0.0, held_s - max(0.0, (started or ended) - (row.admitted or ended)))
    failures = retrying.failures_after(row, reason) if folder.replica.exists() else None
    if failures is not None and (late := retrying.out_of_time(row, reason, ran_s)):
        reason, failures = late, None
    return _End(reason, started, ended, held_s, ran_s, failures)


def _write(site: Site, row: Row, end: _End, moment: Moment) -> bool:
    """Write an end and what follows; return False if somebody wanted the end meanwhile, so that all is to be decided anew."""
    with site.store.transaction() as connection:
        if rows.get(site.store, row.id, site.name).stop != row.stop:
            return False
        if row.started is None and end.started is not None:
            writing.change(connection, row.id, row.attempt, phase=Phase.RUNNING.value, started=end.started)
        writing.end(connection, row, end.reason, moment, end.ended)
        folder, phase = site.state.attempt(row.id, row.attempt), end.reason.final_phase
        accounting.note(connection, row, folder, phase, end.ended, end.held_s)
        if end.failures is not None:
            stories.keep_attempt(connection, row)
            writing.try_again(connection, row, moment, failures=end.failures, ran_s=end.ran_s)
    return True


def _look_after(site: Site, row: Row, folder: AttemptFolder, moment: Moment) -> float | None:
    """See to an attempt whose runner lives."""
    began = read_object(folder.state)
    if began is not None and row.phase == Phase.STARTING:
        _change(site, row, phase=Phase.RUNNING.value, spawned=1, started=_started(began, moment))
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
        return wish or otherwise, moment.wall_s if row.boot_id == moment.boot_id else _last_sign(row, folder)
    told = {"exit_code": report.get("exit_code"), "signal": report.get("signal"), **(report.get("facts") or {})}
    facts = {name: value for name, value in told.items() if value is not None}
    # what died of TERM or KILL just when somebody wanted its end died of that, although its runner knew of no wish yet
    is_killed = report["code"] == "end.signal" and report.get("signal") in ("SIGTERM", "SIGKILL")
    # and who had been told to yield when somebody wanted its end has ended for that
    if wish and (is_killed or report["code"] == PREEMPTED):
        report = {"code": wish.code, "message": wish.message}
    if wish and wish.code == report["code"]:
        facts |= wish.facts
    return Reason(code=report["code"], message=report["message"], facts=facts), folder.end.stat().st_mtime


def _last_sign(row: Row, folder: AttemptFolder) -> float:
    """Return when an attempt that was cut off was last heard of, in seconds since 1970."""
    signs = [path.stat().st_mtime for path in (folder.log, folder.state, folder.usage) if path.exists()]
    return max(signs, default=row.admitted or row.created)


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
    return Reason(code="end.stopping", message=f"it is ending: {reason.message}", facts={**reason.facts, "because": reason.code})


def _yields(row: Row) -> bool:
    """Return whether it is ending because it had to yield."""
    wish = row.stop_reason
    return wish is not None and wish.code == PREEMPTED


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
        writing.change(connection, row.id, row.attempt, Phase.STARTING, Phase.RUNNING, **columns)
