"""Which way the memory of a local program is limited.

- ``scope``: by the system, in a transient scope of the account's own service manager. It works where the account *lingers*, so
  that its service manager runs whether or not somebody is logged in, and has the memory controller.
- ``watch``: by the runner, which looks every 0.25 to 2 seconds (`memory.Watch`); what allocates faster than that can use up the
  machine's memory before it is seen.

Source: systemd-run(1), loginctl(1), systemd.resource-control(5).
"""

from __future__ import annotations

import os
import shutil
import sys

AUTO, SCOPE, WATCH, OFF = "auto", "scope", "watch", "off"


def way(mode: str) -> tuple[str, str]:
    """Return ``scope``, ``watch`` or ``off``, and why not the one before in this order, for what a place is set to.

    ``scope`` that is asked for and can't be had is ``off`` with the reason: then nothing may start.
    """
    if mode == OFF:
        return OFF, "the setting memory_limits is off"
    if mode in (AUTO, SCOPE):
        missing = why_no_scope()
        if not missing:
            return SCOPE, ""
        if mode == SCOPE:
            return OFF, missing
    else:
        missing = "the setting memory_limits is watch"
    if not os.path.isdir("/proc/self"):
        return OFF, "this system has no /proc to watch"
    return WATCH, missing


def why_no_scope() -> str:
    """Return what is missing for ``scope``; empty if nothing is."""
    if sys.platform != "linux" or not os.path.isdir("/run/systemd/system"):
        return "systemd does not run here"
    if shutil.which("systemd-run") is None:
        return "there is no systemd-run on PATH"
    if not _lingers():
        return "this account does not linger (loginctl enable-linger)"
    uid = os.getuid()
    if not os.path.exists("/run/user/%d/systemd/private" % uid):
        return "the service manager of this account does not run"
    controllers = "/sys/fs/cgroup/user.slice/user-%d.slice/user@%d.service/cgroup.controllers" % (uid, uid)
    try:
        with open(controllers) as file:
            if "memory" in file.read().split():
                return ""
    except OSError:
        pass
    return "the service manager of this account may not limit memory (it needs cgroup v2 with the memory controller)"


def scope_command(command: list[str], variables: dict[str, str], limit_bytes: int) -> tuple[list[str], dict[str, str]]:
    """Return a command, and its variables, that runs another in a scope with a limit; it becomes that other, with the same pid.

    Swap is none, so that the limit is one of memory, as in a pod.
    """
    scope = [
        shutil.which("systemd-run") or "systemd-run",
        "--user",
        "--scope",
        "--quiet",
        "--collect",
        "--property=MemoryMax=%d" % limit_bytes,
        "--property=MemorySwapMax=0",
        "--",
    ]
    return scope + command, {"XDG_RUNTIME_DIR": "/run/user/%d" % os.getuid(), **variables}


def _lingers() -> bool:
    try:
        accounts = os.listdir("/var/lib/systemd/linger")
    except OSError:
        return False
    if not accounts:
        return False
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name in accounts
    except KeyError:
        return False
