"""What goes wrong around a runner ends neither it nor its program."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builders import DEADLINE_S
from tests.unit.replicas import run, start

ASKED = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\nprint('x' * 100, flush=True)\nsys.exit(3)"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for little."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(folder)], check=False, capture_output=True)
    if mount.returncode:
        pytest.skip("this account may mount nothing")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def until(condition: Callable[[], object]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fill(folder: Path) -> Path:
    """Use up all space of a file system, and return the file that has it."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            return path


def waiting_for(path: Path) -> dict[str, list[str]]:
    """Return a change of a specification: a program that says something and ends with 3 once a file is there."""
    return {"command": [sys.executable, "-S", "-E", "-c", ASKED, str(path)]}


def test_on_a_disk_that_fills_up_the_end_is_told(small_disk: Path, tmp_path: Path) -> None:
    runner = start(tmp_path, "", attempt=small_disk, **waiting_for(tmp_path / "go"))
    until((small_disk / "end.json.new").exists)
    fill(small_disk)
    (tmp_path / "go").touch()
    assert runner.ended() == 3
    assert runner.content("end.json")["exit_code"] == 3


def test_on_a_full_disk_the_program_runs_and_the_runner_ends_with_its_code(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk)
    runner = start(tmp_path, "", attempt=small_disk, **waiting_for(tmp_path / "go"))
    (tmp_path / "go").touch()
    assert runner.ended() == 3
    assert not (small_disk / "end.json").exists()


def test_when_there_is_room_again_it_tells_that_it_runs(small_disk: Path, tmp_path: Path) -> None:
    filler = fill(small_disk)
    ready, go = tmp_path / "ready", tmp_path / "go"
    code = (
        f"import os, time\nopen({str(ready)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('up')"
    )
    runner = start(tmp_path, code, attempt=small_disk)
    until(ready.exists)
    assert not (small_disk / "state.json").exists()
    filler.unlink()
    until((small_disk / "state.json").exists)
    go.touch()
    assert runner.ended() == 0
    assert runner.said[-1] == "up"


def test_half_a_line_of_a_full_disk_spoils_no_other(small_disk: Path, tmp_path: Path) -> None:
    go, freed = tmp_path / "go", tmp_path / "freed"
    code = (
        f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('x' * 9000, flush=True)\n"
        f"while not os.path.exists({str(freed)!r}): time.sleep(0.01)\nprint('whole')"
    )
    runner = start(tmp_path, code, attempt=small_disk)
    until((small_disk / "end.json.new").exists)
    filler = fill(small_disk)
    go.touch()
    until(lambda: "xxx" in (small_disk / "log").read_text())
    filler.unlink()
    freed.touch()
    assert runner.ended() == 0
    assert runner.said[-1] == "whole"
    assert runner.reports("end")


def test_what_it_was_started_from_may_be_removed(tmp_path: Path) -> None:
    runner = start(tmp_path, "", **waiting_for(tmp_path / "go"))
    until((runner.folder / "end.json.new").exists)
    (tmp_path / "replica.zip").unlink()
    (tmp_path / "go").touch()
    assert runner.ended() == 3
    assert runner.content("end.json")["code"] == "end.exit_code"


@pytest.mark.parametrize(
    ("given", "expected"), [({"after_variables": {"A": "b"}}, {"A": "b"}), ({}, {"PATH": os.environ["PATH"]})]
)
def test_what_comes_after_gets_its_own_variables(tmp_path: Path, given: dict[str, str], expected: dict[str, str]) -> None:
    told = tmp_path / "told"
    new = f"{told}.new"
    code = f"import json, os; open({new!r}, 'w').write(json.dumps(dict(os.environ))); os.rename({new!r}, {str(told)!r})"
    after = [sys.executable, "-S", "-E", "-c", code]
    run(tmp_path, "", after=after, **given)
    until(told.exists)
    said = json.loads(told.read_text())
    assert {name: said[name] for name in said if name != "LC_CTYPE"} == expected  # which Python adds where there is no locale


def test_nothing_comes_after_where_somebody_has_its_lock(tmp_path: Path) -> None:
    lock, first, second = (tmp_path / name for name in ("keeper.lock", "first", "second"))

    def making(path: Path) -> dict[str, object]:
        return {"after": [sys.executable, "-S", "-E", "-c", f"open({str(path)!r}, 'w')"], "after_unless_locked": str(lock)}

    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run(tmp_path, "", **making(first))
    run(tmp_path, "", **making(second))
    until(second.exists)
    assert not first.exists()


def test_a_run_that_is_over_leaves_nothing_but_its_story(tmp_path: Path) -> None:
    runner = run(tmp_path, "print('hello')")
    assert {path.name for path in runner.folder.iterdir()} == {"log", "state.json", "usage.json", "end.json"}
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_wish_that_can_not_be_read_is_an_end_from_outside(tmp_path: Path, content: str) -> None:
    runner = start(tmp_path, "import time; time.sleep(600)")
    until((runner.folder / "state.json").exists)
    (runner.folder / "stop.json").write_text(content)
    runner.process.terminate()
    runner.ended()
    assert runner.content("end.json")["code"] == "end.terminated"


def test_who_had_to_yield_and_must_end_for_good_is_told_again_and_has_no_more_time_by_that(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: open({str(told)!r}, 'a').write('TERM '))\n"
        "print('up', flush=True)\ntime.sleep(600)\ntime.sleep(600)\ntime.sleep(600)"
    )
    runner = start(tmp_path, code)
    until(lambda: "up" in runner.said)
    runner.tell_to_stop("end.preempted", 600)
    until(told.exists)
    runner.tell_to_stop("end.cancelled", 0.2)
    runner.ended()
    end = runner.content("end.json")
    assert (end["code"], end["signal"], told.read_text()) == ("end.cancelled", "SIGKILL", "TERM TERM ")
