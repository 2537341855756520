"""The verbs, asked on the command line of a local place."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from jupyter_gpu.schema import Kind, Phase
from jupyter_gpu.verbs import Answer
from jupyter_gpu.verbs.times import duration, since
from jupyter_gpu.verbs.words import age, plain, short_ids
from tests.builders import DEADLINE_S, a_workload, program
from tests.homes import Home


def _wait(home: Home, id: str, *phases: Phase) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while home.gpu().get(id).status.phase not in phases:
        assert time.monotonic() < deadline, f"{id} is {home.gpu().get(id).status}"
        time.sleep(0.02)


def _ended(home: Home, id: str) -> None:
    _wait(home, id, Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)


# ---- status, list, show


def test_status_shows_devices_with_their_holders_and_who_waits_for_what(home: Home) -> None:
    home.submit(a_workload("w-1", gpus=2, name="first"))
    home.submit(a_workload("w-2", gpus=1, name="second"))
    result = home.cli("status")
    assert result.exit_code == 0
    assert re.search(r"GPU-emulated-1 .* emulated .* first \(w-1\)", result.out)
    assert re.search(r"1 +second \(w-2\) +queued .* waits for 1 nvidia.com/gpu: 0 of 2 free", result.out)
    assert "emulated: they do not exist" in result.out


def test_status_as_json_is_the_place_and_its_workloads(home: Home) -> None:
    home.submit(a_workload("w-1", gpus=1))
    data = home.cli("status", "--json").data
    assert data["place"]["capacity"] == {"nvidia.com/gpu": 2}
    assert [workload["spec"]["id"] for workload in data["workloads"]] == ["w-1"]


def test_an_empty_list_says_where_and_how_to_see_the_rest(home: Home) -> None:
    result = home.cli("list")
    assert (result.exit_code, result.err) == (0, "")
    assert "in local; `jupyter gpu list --all`" in result.out


def test_list_shows_ended_workloads_only_when_asked(home: Home) -> None:
    home.submit(a_workload("w-1", command=program()))
    home.submit(a_workload("w-2"))
    _ended(home, "w-1")
    assert "w-1" not in home.cli("list").out
    assert {w["spec"]["id"] for w in home.cli("list", "--all", "--json").data["workloads"]} == {"w-1", "w-2"}


def test_list_narrows_by_queue_and_kind(home: Home) -> None:
    home.gpu().apply_queues({"queues": {"default": {}, "night": {}}})
    home.submit(a_workload("w-1", queue="night"))
    home.submit(a_workload("w-2", kind=Kind.SERVICE))

    def ids(*words: str) -> list[str]:
        return [workload["spec"]["id"] for workload in home.cli("list", "--json", *words).data["workloads"]]

    assert ids("--queue", "night") == ["w-1"]
    assert ids("--kind", "service") == ["w-2"]
    assert "no workload that fits" in home.cli("list", "--kind", "kernel").out


def test_names_reach_the_terminal_without_anything_it_would_obey(home: Home) -> None:
    home.submit(a_workload("w-1", name="[red]bad[/red]\x1b[31m\nname\N{PILE OF POO}"))
    out = home.cli("list").out
    assert "[red]bad[/red]�[31m�name\N{PILE OF POO}" in out
    assert "\x1b" not in out


def test_an_error_reaches_the_terminal_without_anything_it_would_obey(home: Home) -> None:
    home.gpu().apply_queues({"queues": {"a\x1b[31mb": {}}})
    result = home.cli("why", "--gpus", "1")
    assert result.exit_code == 2 and "there are: a�[31mb" in result.err and "\x1b" not in result.err


def test_a_long_name_is_cut_where_there_is_a_table(home: Home) -> None:
    home.submit(a_workload("w-1", gpus=2, name="n" * 900))
    for verb in ("list", "status"):
        assert "n" * 39 + "…" in home.cli(verb).out and "n" * 41 not in home.cli(verb).out


def test_show_tells_the_story_of_a_workload(home: Home) -> None:
    home.submit(a_workload("w-1", gpus=1, name="job", command=program(exit_code=3)))
    _ended(home, "w-1")
    result = home.cli("show", "job")
    assert result.exit_code == 0
    for words in ("job  w-1", "it ended with exit code 3 (end.exit_code)", "exit_code=3", "holding GPU-emulated-0"):
        assert words in result.out
    assert re.search(r"\d\d:\d\d:\d\d  failed +it ended with exit code 3\n", result.out)
    data = home.cli("show", "w-1", "--json").data
    assert [one["event"] for one in data["story"]][-1] == "failed"
    assert {"time", "attempt", "event", "code", "message", "lasted_s"} == set(data["story"][0])
    assert data["workload"]["status"]["phase"] == "failed"


def test_a_story_is_not_folded_where_no_screen_is(home: Home) -> None:
    home.submit(a_workload("w-1", gpus=2))
    home.submit(a_workload("w-2", gpus=2))
    assert re.search(r"queued +waits for 2 nvidia.com/gpu: 0 of 2 free$", home.cli("show", "w-2").out, re.MULTILINE)


def test_show_tells_of_every_attempt(home: Home) -> None:
    home.submit(a_workload("w-1", command=program(exit_code=3), retries=1))
    _ended(home, "w-1")
    data = home.cli("show", "w-1", "--json").data
    assert [one["attempt"] for one in data["story"] if one["event"] == "running"] == [1, 2]
    assert re.search(r"^ +attempt 2\n", home.cli("show", "w-1").out, re.MULTILINE)


def test_show_tells_what_it_uses(home: Home) -> None:
    gpus = [{"id": "GPU-emulated-0", "utilization": 0.37, "memory_bytes": 2**30}]
    sample = {"report": "sample", "cpu": 0.8, "memory_bytes": 2**21, "gpus": gpus}
    home.submit(a_workload("w-1", gpus=1, command=program(["\x1e" + json.dumps(sample), "one"], seconds=600)))
    _said(home, "w-1", "one\n")
    assert re.search(r"uses +GPU 37 %, 1 GiB; CPU 0.8; memory 2 MiB of 128 MiB \(\d+s ago\)", home.cli("show", "w-1").out)
    (shown,) = home.cli("show", "w-1", "--json").data["samples"]
    assert shown["replica"] == 0 and shown["cpus"] == 0.8 and shown["gpus"] == gpus


def _said(home: Home, id: str, text: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while text not in home.cli("logs", id).out:
        assert time.monotonic() < deadline, f"{id} did not say {text!r}"
        time.sleep(0.02)


# ---- logs


def test_logs_keep_stdout_and_stderr_apart(home: Home) -> None:
    home.submit(a_workload("w-1", command=program(["one", "two [b]"], stderr=["oh"])))
    _ended(home, "w-1")
    result = home.cli("logs", "w-1")
    assert (result.exit_code, result.out, result.err) == (0, "one\ntwo [b]\n", "oh\n")


def test_logs_with_timestamps_and_since_name_and_bound_the_time(home: Home) -> None:
    home.submit(a_workload("w-1", command=program(["one"])))
    _ended(home, "w-1")
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z one\n", home.cli("logs", "-t", "w-1").out)
    assert home.cli("logs", "w-1", "--since", "1h").out == "one\n"
    assert home.cli("logs", "w-1", "--since", "2999-01-01T00:00:00Z").out == ""


def test_logs_as_json_are_lines_with_reports(home: Home) -> None:
    home.submit(a_workload("w-1", command=program(["one"])))
    _ended(home, "w-1")
    lines = [json.loads(line) for line in home.cli("logs", "w-1", "--json").out.splitlines()]
    assert [line["stream"] for line in lines] == ["report", "stdout", "report"]
    assert lines[1]["text"] == "one"


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 0), (4, 1)])
def test_following_a_log_ends_as_its_workload_does(home: Home, exit_code: int, expected: int) -> None:
    home.submit(a_workload("w-1", command=program(["one"], seconds=0.2, exit_code=exit_code)))
    result = home.cli("logs", "-f", "w-1")
    assert (result.exit_code, result.out) == (expected, "one\n")
    assert f"it ended with exit code {exit_code}" in result.err


def test_following_what_waits_says_so_first(home: Home) -> None:
    home.submit(a_workload("w-1", gpus=2, command=program(seconds=0.5)))
    home.submit(a_workload("w-2", gpus=1, command=program(["done"])))
    result = home.cli("logs", "-f", "w-2")
    assert result.exit_code == 0
    assert result.err.startswith("-- w-2 is queued: waits for 1 nvidia.com/gpu")
    assert result.out == "done\n"


# ---- cancel


def test_cancel_says_what_became_of_each(home: Home) -> None:
    home.submit(a_workload("w-1", gpus=2))
    home.submit(a_workload("w-2", gpus=1))
    _wait(home, "w-1", Phase.RUNNING)
    result = home.cli("cancel", "w-2", "w-1", "w-2", "--wait")
    first, second = result.out.splitlines()
    assert first.startswith("w-2 cancelled") and first.endswith("(was queued, number 1 in line)")
    assert second.startswith("w-1 cancelled") and second.endswith("(was running)")
    assert "w-1 had ended before: cancelled" in home.cli("cancel", "w-1").out


def test_of_several_that_are_cancelled_none_starts_in_the_place_of_another(home: Home) -> None:
    for id in ("w-1", "w-2", "w-3"):
        home.submit(a_workload(id, gpus=2))
    assert home.cli("cancel", "w-1", "w-2", "w-3", "--wait").exit_code == 0
    for id in ("w-2", "w-3"):
        assert "starting" not in [one["event"] for one in home.cli("show", id, "--json").data["story"]]


def test_cancel_without_wait_tells_how_long_it_may_take(home: Home) -> None:
    home.submit(a_workload("w-1", command=program(seconds=60, ignores_term=True), grace_s=2))
    _wait(home, "w-1", Phase.RUNNING)
    _said(home, "w-1", "hello\n")  # from its first line on it ignores TERM
    assert "w-1 was told to end (is running; it has 2 s for that)" in home.cli("cancel", "w-1").out


def test_if_one_is_unknown_none_is_cancelled(home: Home) -> None:
    home.submit(a_workload("w-1"))
    result = home.cli("cancel", "w-1", "nobody")
    assert result.exit_code == 3
    assert "'nobody'" in result.err
    assert home.gpu().get("w-1").status.phase in (Phase.STARTING, Phase.RUNNING)


# ---- errors and exits


@pytest.mark.parametrize(
    ("words", "exit_code", "says"),
    [
        (["show", "nobody"], 3, "'nobody'; `jupyter gpu list --all` shows those there are"),
        (["logs", "nobody", "-f"], 3, "workload 'nobody'"),
        (["--place", "moon", "list"], 3, "there is no place 'moon' in the configuration; there are: local"),
        (["list", "--place", "moon"], 3, "there is no place 'moon'"),
        (["list", "--kind", "pizza"], 2, "'pizza' is not one of 'kernel'"),
        (["logs", "w", "--since", "soon"], 2, "'soon' is no time; write 10m"),
        (["logs", "w", "--replica", "-1"], 2, "-1 is not in the range"),
        (["cancel"], 2, "Missing argument"),
        (["usage", "--since", "soon"], 2, "'soon' is no time; write 10m, 1h30m, a date like 2030-01-31"),
        (["usage", "--by", "pizza"], 2, "'pizza' is not one of 'queue', 'owner', 'workload'"),
        (["queues", "apply"], 2, "Missing argument 'FILE'"),
        (["kernels", "install", "--prefix", ""], 2, "--prefix is empty; name the folder"),
        (["brew"], 2, "No such command 'brew'"),
        (["kernels", "remove", "nothing"], 3, "there is no kernelspec 'nothing'"),
        (["kernels", "install", "tpu"], 3, "there is no profile 'tpu'"),
        (["kernels", "install", "--user", "--sys-prefix"], 2, "choose one of"),
        (["check", "moon"], 3, "there is no place 'moon'"),
    ],
)
def test_a_mistake_ends_with_its_code_and_one_clear_word(home: Home, words: list[str], exit_code: int, says: str) -> None:
    result = home.cli(*words)
    assert result.exit_code == exit_code
    assert "Error: " in result.err and says in result.err
    assert "Traceback" not in result.err and result.out == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [(["show", "nobody"], "not_found"), (["list", "--kind", "pizza"], "invalid_request"), (["brew"], "invalid_request")],
)
def test_with_json_an_error_is_an_object(home: Home, words: list[str], code: str) -> None:
    result = home.cli(*words, "--json")
    assert result.data["error"]["code"] == code
    assert result.data["error"]["message"]
    assert result.err == ""


def test_debug_shows_where_an_error_came_from(home: Home) -> None:
    result = home.cli("show", "nobody", "--debug")
    assert result.exit_code == 3
    assert "Traceback" in result.err and "Error: " in result.err


def test_a_mistake_of_ours_is_one_line_that_names_the_traceback(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_gpu.connection.Gpu.place", lambda self: 1 / 0)
    result = home.cli("status")
    assert result.exit_code == 70
    assert len(result.err.splitlines()) == 1 and "ZeroDivisionError" in result.err
    path = Path(result.err.split("its traceback is in ")[1].strip().removesuffix(")"))
    assert "1 / 0" in path.read_text()
    assert path.is_relative_to(home.folder)


def test_help_names_the_verbs_and_the_exit_codes(home: Home) -> None:
    result = home.cli("--help")
    assert result.exit_code == 0
    verbs = ("status", "list", "show", "why", "logs", "cancel", "priority", "queues", "usage", "check", "kernels", "keeper")
    for word in (*verbs, "--place", "--json", "130  interrupted"):
        assert word in result.out
    assert "--follow" in home.cli("logs", "-h").out


def test_version_is_the_packages(home: Home) -> None:
    import jupyter_gpu

    assert home.cli("--version").out == f"jupyter-gpu {jupyter_gpu.__version__}\n"


def test_an_interrupt_ends_a_followed_log_quietly(home: Home) -> None:
    home.submit(a_workload("w-1", command=program(["one"], seconds=60)))
    command = [sys.executable, "-m", "jupyter_gpu", "logs", "-f", "w-1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while process.stdout.readline() != "one\n":
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_mistake(home: Home) -> None:
    home.submit(a_workload("w-1", command=program([], counts=20_000)))
    _ended(home, "w-1")
    command = [sys.executable, "-m", "jupyter_gpu", "logs", "w-1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "line 1\n"
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 141
        assert process.stderr.read() == ""


# ---- words


def test_colour_is_for_terminals_only(home: Home) -> None:
    home.submit(a_workload("w-1"))
    assert "\x1b" not in home.cli("status").out


def test_an_answer_is_html_too(home: Home) -> None:
    html = Answer(None, "a <b> & [red]c[/red]\n").html
    assert html.startswith("<pre") and "a &lt;b&gt; &amp; [red]c[/red]" in html


def test_short_ids_are_as_long_as_they_must_be() -> None:
    ids = ["bc6c31ca-26c4-4b0c-8747-580f228eace3", "bc6c31ca-26c5-4b0c-8747-580f228eace3", "train-7"]
    assert short_ids(ids) == {ids[0]: "bc6c31ca-26c4-4b"[:16], ids[1]: "bc6c31ca-26c5-4b"[:16], "train-7": "train-7"}


def test_an_id_that_begins_like_another_is_shown_whole() -> None:
    id = "bc6c31ca-26c4-4b0c-8747-580f228eace3"
    assert short_ids(["w-1", "w-10", "w-100", id, id + "-2"]) == {
        "w-1": "w-1",
        "w-10": "w-10",
        "w-100": "w-100",
        id: id,
        id + "-2": id + "-2",
    }


@pytest.mark.parametrize(
    ("seconds", "words"), [(-3, "0s"), (59, "59s"), (61, "1m"), (3 * 3600 + 5 * 60, "3h05m"), (90_000, "1d")]
)
def test_an_age_has_at_most_two_numbers(seconds: int, words: str) -> None:
    now = datetime.now(UTC)
    assert age(now - timedelta(seconds=seconds), now) == words


def test_since_reads_durations_and_times_with_a_zone() -> None:
    assert abs((datetime.now(UTC) - since("1h30m")) - timedelta(minutes=90)) < timedelta(seconds=5)
    assert since("2030-01-31T12:00:00Z") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert since("2030-01-31") == datetime(2030, 1, 31).astimezone()
    for wrong in ("", "10", "m", "2030-01-31T12:00:00", "2030-02-31", "99999999999d", "999999999d"):
        with pytest.raises(click.BadParameter, match="is no time"):
            since(wrong)


def test_a_duration_is_longer_than_nothing() -> None:
    assert duration("1h30m") == timedelta(minutes=90)
    for wrong in ("", "0s", "-1h", "1", "h", "1y", "999999999999d"):
        with pytest.raises(click.BadParameter, match="is no duration"):
            duration(wrong)


def test_plain_text_is_one_line() -> None:
    assert plain("a\tb\n\x1b]0;c\x07é") == "a�b��]0;c�é"


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_has_colour_unless_it_is_turned_off(home: Home, variables: dict[str, str], coloured: bool) -> None:
    home.submit(a_workload("w-1"))
    _wait(home, "w-1", Phase.RUNNING)
    near, far = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    with subprocess.Popen([sys.executable, "-m", "jupyter_gpu", "list"], stdout=far, stderr=far, env=environment) as process:
        os.close(far)
        shown = _read_all(near)
    assert process.returncode == 0
    assert ("\x1b[32mrunning" in shown) is coloured
    assert "running" in shown


def _read_all(terminal: int) -> str:
    shown = b""
    with os.fdopen(terminal, "rb", buffering=0) as file:
        while True:
            try:
                data = file.read(4096)
            except OSError:  # how Linux tells the end of a terminal
                data = b""
            if not data:
                return shown.decode()
            shown += data
