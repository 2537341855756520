"""Logs in the CRI format, as they are and as they should not be."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from jupyter_gpu.backends.local import logs
from jupyter_gpu.backends.local.logs import LogReader
from jupyter_gpu.schema import LogLine, Stream

TIME = "2030-01-01T00:00:00.123456789Z"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def read(log: Path, since: datetime | None = None) -> list[LogLine]:
    reader, lines = LogReader(log, 3, since), []
    while (some := reader.read()) is not None:
        lines += some
    return lines + reader.last()


def texts(log: Path) -> list[str]:
    return [line.text for line in read(log)]


def test_a_line_knows_its_time_and_stream(log: Path) -> None:
    log.write_text(f"{TIME} stderr F it  hurts \n")
    line = LogLine(time=datetime(2030, 1, 1, 0, 0, 0, 123456, UTC), replica=0, attempt=3, stream=Stream.STDERR, text="it  hurts ")
    assert read(log) == [line]


def test_no_log_is_no_lines(log: Path) -> None:
    assert read(log) == []


def test_parts_of_one_line_are_joined_per_stream(log: Path) -> None:
    log.write_text(f"{TIME} stdout P one \n{TIME} stderr F other\n{TIME} stdout P two \n{TIME} stdout F three\n")
    assert texts(log) == ["other", "one two three"]


def test_a_line_without_an_end_comes_last(log: Path) -> None:
    log.write_text(f"{TIME} stdout F whole\n{TIME} stdout P part\n{TIME} stderr F torn")
    assert texts(log) == ["whole", "torn", "part"]


def test_a_line_that_never_ends_is_shown_in_pieces(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LONGEST", 10)
    log.write_text(f"{TIME} stdout P 123456\n" * 5)
    assert texts(log) == ["123456123456", "123456123456", "123456"]


def test_empty_lines_are_kept(log: Path) -> None:
    log.write_text(f"{TIME} stdout F \n{TIME} stdout F\n")
    assert texts(log) == ["", ""]


def test_what_is_no_text_is_marked_as_such(log: Path) -> None:
    log.write_bytes(f"{TIME} stdout F ".encode() + b"caf\xe9 \xff\n")
    assert texts(log) == ["caf\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}"]


def test_a_character_on_the_edge_of_a_read_stays_whole(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_CHUNK_BYTES", 1)
    log.write_text(f"{TIME} stdout F größer\n")
    assert texts(log) == ["größer"]


@pytest.mark.parametrize(
    "record", ["garbage", "", "2030-01-01 stdout F x", f"{TIME} stdin F x", f"{TIME} stdout X x", "\0\0 \x01 F"]
)
def test_what_is_no_record_is_shown_as_it_is(log: Path, record: str) -> None:
    log.write_text(f"{TIME} stdout F before\n{record}\n{TIME} stdout F after\n")
    lines = read(log)
    assert [line.text for line in lines] == ["before", record, "after"]
    assert lines[0].time == lines[1].time


def test_reports_are_told_from_lines_that_look_like_one(log: Path) -> None:
    frames = ['\x1e{"report": "end", "code": "end.completed"}', "\x1e[1]", "\x1e{", '{"report": "end"}']
    log.write_text("".join(f"{TIME} stdout F {frame}\n" for frame in frames) + f"{TIME} stderr F {frames[0]}\n")
    first, *others = read(log)
    assert (first.stream, first.text, first.report) == (Stream.REPORT, "", {"report": "end", "code": "end.completed"})
    assert [line.text for line in others] == [*frames[1:], frames[0]]
    assert {line.stream for line in others} == {Stream.STDOUT, Stream.STDERR}


def test_since_leaves_out_what_is_older(log: Path) -> None:
    log.write_text("".join(f"2030-01-01T00:00:0{second}Z stdout F {second}\n" for second in range(5)))
    assert [line.text for line in read(log, datetime(2030, 1, 1, 0, 0, 3, tzinfo=UTC))] == ["3", "4"]
    assert [line.text for line in read(log, datetime.fromisoformat("2030-01-01T01:00:04+01:00"))] == ["4"]


def test_reading_goes_on_where_it_ended(log: Path) -> None:
    log.write_text(f"{TIME} stdout F one\n{TIME} std")
    reader = LogReader(log, 1)
    assert [line.text for line in reader.read() or ()] == ["one"]
    assert reader.read() is None
    with log.open("a") as file:
        file.write("out F two\n")
    assert [line.text for line in reader.read() or ()] == ["two"]
