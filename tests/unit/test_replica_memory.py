"""A program is held to its memory, and told what it died of."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu.replica import limits, memory
from tests.homes import Home
from tests.unit.replicas import MIB, run

LIMIT = {"memory_limits": "auto", "memory_bytes": 64 * MIB}
HOLD = "import time; held = bytearray(b'1') * (%d << 20); print('held', flush=True); time.sleep(%g)"
GiB = 1 << 30


def test_a_program_above_its_limit_is_ended_with_the_numbers(tmp_path: Path) -> None:
    runner = run(tmp_path, HOLD % (100, 60), **LIMIT)
    end = runner.content("end.json")
    assert (end["code"], end["signal"]) == ("end.out_of_memory", "SIGKILL")
    assert end["facts"]["limit_bytes"] == 64 * MIB
    assert end["facts"]["peak_memory_bytes"] > 64 * MIB
    assert re.search(r"its limit of 64 MiB: ask for more \(memory: (96|128|192) MiB\)", end["message"])


def test_one_below_it_is_left_alone(tmp_path: Path) -> None:
    end = run(tmp_path, HOLD % (30, 1), **LIMIT).content("end.json")
    assert end["code"] == "end.completed"
    assert 30 * MIB < end["facts"]["peak_memory_bytes"] < 64 * MIB


def test_what_its_children_hold_counts(tmp_path: Path) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {HOLD % (40, 60)!r}])"
    code = f"import subprocess, sys\nfor _ in range(2): p = subprocess.Popen([sys.executable, '-S', '-c', {child!r}])\np.wait()"
    assert run(tmp_path, code, **LIMIT).content("end.json")["code"] == "end.out_of_memory"


def test_what_forked_processes_share_counts_once(tmp_path: Path) -> None:
    code = (
        "import os, time\nheld = bytearray(b'1') * (40 << 20)\nfor _ in range(4): os.fork() or (time.sleep(1.5), os._exit(0))\n"
    )
    end = run(tmp_path, code + "while True:\n  try: os.wait()\n  except OSError: break", **LIMIT).content("end.json")
    assert end["code"] == "end.completed"
    assert end["facts"]["peak_memory_bytes"] < 64 * MIB


def test_one_that_left_the_group_is_ended_too(tmp_path: Path) -> None:
    code = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  held = bytearray(b'1') * (100 << 20)\ntime.sleep(60)"
    assert run(tmp_path, code, **LIMIT).content("end.json")["code"] == "end.out_of_memory"


@pytest.mark.parametrize("changes", [{"memory_limits": "off"}, {"memory_limits": None}, {"memory_bytes": None}])
def test_where_nothing_is_limited_nothing_is_ended(tmp_path: Path, changes: dict[str, object]) -> None:
    end = run(tmp_path, HOLD % (100, 1), **{**LIMIT, **changes}).content("end.json")
    assert end["code"] == "end.completed"
    assert end["facts"]["peak_memory_bytes"] > 100 * MIB


def test_who_is_killed_by_somebody_else_did_not_want_memory(tmp_path: Path) -> None:
    end = run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", **LIMIT).content("end.json")
    assert (end["code"], end["signal"]) == ("end.signal", "SIGKILL")


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, as an account or a container may live in."""
    group = Path("/sys/fs/cgroup/memory/jupyter-gpu-test")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 * MIB))
    except OSError:
        pytest.skip("this account may make no control group with a limit (cgroup v1, root)")
    yield group
    group.rmdir()


def test_what_the_systems_own_killer_ended_is_told_so(tmp_path: Path, small_group: Path) -> None:
    enter = f"import os; open({str(small_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    end = run(tmp_path, enter + HOLD % (200, 60), memory_limits="off").content("end.json")
    assert (end["code"], end["signal"]) == ("end.out_of_memory", "SIGKILL")
    assert "this machine ran out of memory" in end["message"]
    assert end["facts"]["machine_bytes"] > 64 * MIB
    assert end["facts"]["peak_memory_bytes"] > 0


def test_a_scope_that_can_not_be_had_is_watched_or_refused(tmp_path: Path) -> None:
    missing = limits.why_no_scope()
    if not missing:
        pytest.skip("this account can have scopes")
    assert limits.way("auto") == ("watch", missing)
    assert limits.way("scope") == ("off", missing)
    end = run(tmp_path, HOLD % (1, 0), memory_limits="scope", memory_bytes=64 * MIB).content("end.json")
    assert end["code"] == "start.memory_limit"
    assert missing in end["message"]


def test_what_is_set_is_the_way() -> None:
    assert limits.way("watch")[0] == "watch"
    assert limits.way("off")[0] == "off"


def test_a_scope_is_asked_for_without_a_shell() -> None:
    command, variables = limits.scope_command(["python", "-c", "x; y"], {"A": "$B"}, 8 * GiB)
    assert Path(command[0]).name == "systemd-run"
    assert command[1:] == [
        *("--user", "--scope", "--quiet", "--collect", f"--property=MemoryMax={8 * GiB}", "--property=MemorySwapMax=0"),
        *("--", "python", "-c", "x; y"),
    ]
    assert variables == {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", "A": "$B"}
    assert limits.scope_command([], {"XDG_RUNTIME_DIR": "/mine"}, 1)[1] == {"XDG_RUNTIME_DIR": "/mine"}


@pytest.mark.parametrize(
    ("used", "size"), [(1, MIB), (64 * MIB, 96 * MIB), (95 * MIB, 128 * MIB), (8 * GiB, 12 * GiB), (12 * GiB, 16 * GiB)]
)
def test_the_next_size_is_a_usual_one(used: int, size: int) -> None:
    assert memory.next_size(used) == size


def test_a_limit_that_the_system_keeps_is_told_without_a_figure_above_it() -> None:
    message, facts = memory.too_much(8 * GiB, 8 * GiB)
    assert message == "it wanted more memory than its limit of 8 GiB: ask for more (memory: 12 GiB), or hold less at a time"
    assert facts == {"peak_memory_bytes": 8 * GiB, "limit_bytes": 8 * GiB}


def test_watching_needs_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.isdir", lambda path: False)
    assert limits.way("auto")[0] == "off"
    assert sys.platform  # as on macOS


@pytest.mark.parametrize(
    ("mode", "says"), [("watch", "is watched"), ("off", "is not limited"), ("auto", "the memory of programs is")]
)
def test_check_tells_which_way_memory_is_limited(home: Home, mode: str, says: str) -> None:
    home.configure(places={"local": {**home.local, "memory_limits": mode}})
    found = [one["message"] for one in home.cli("check", "--json").data["checks"] if one["subject"] == "place local"]
    assert any(says in message for message in found)


def test_check_says_so_where_nothing_can_start(home: Home) -> None:
    if not limits.why_no_scope():
        pytest.skip("this account can have scopes")
    home.configure(places={"local": {**home.local, "memory_limits": "scope"}})
    result = home.cli("check", "--json")
    assert result.exit_code == 1
    assert any("no program can start" in one["message"] for one in result.data["checks"] if one["state"] == "off")
