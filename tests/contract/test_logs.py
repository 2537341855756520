"""What the replicas said."""

from __future__ import annotations

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.errors import NotFoundError
from jupyter_gpu.schema import LogLine, Stream
from tests.builders import a_workload, finished, log_of, program, reports, running, said, texts
from tests.contract.places import decides_itself, runs_several


async def test_a_log_holds_every_line_in_order(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("one", "two", "three"))))
    await finished(backend, "w-1")
    lines = await log_of(backend, "w-1")
    assert texts(lines) == ["one", "two", "three"]
    assert {(line.replica, line.attempt) for line in lines} == {(0, 1)}
    assert [line.time for line in lines] == sorted(line.time for line in lines)


async def test_without_follow_it_shows_what_there_is(backend: Backend) -> None:
    await backend.submit(a_workload("w-1"))
    await said(backend, "w-1", "hello")
    assert texts(await log_of(backend, "w-1")) == ["hello"]


async def test_without_follow_what_waits_has_said_nothing(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=2))
    await running(backend, "w-1")
    await backend.submit(a_workload("w-2", gpus=2))
    assert await log_of(backend, "w-2") == []


async def test_following_waits_for_the_start_and_ends_after_the_last_line(backend: Backend) -> None:
    await backend.submit(a_workload("w-0", gpus=2, command=program(seconds=0.5)))
    await backend.submit(a_workload("w-1", gpus=2, command=program(("one", "two"), pause_s=0.05)))
    lines = await log_of(backend, "w-1", follow=True)
    assert texts(lines) == ["one", "two"]
    assert reports(lines, "end")


async def test_following_shows_lines_while_the_program_runs(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("one",), seconds=600)))
    line = await said(backend, "w-1", "one")
    assert line.stream is Stream.STDOUT


async def test_following_what_is_cancelled_before_its_start_ends_without_a_line(backend: Backend) -> None:
    await backend.submit(a_workload("w-0", gpus=2))
    await running(backend, "w-0")
    await backend.submit(a_workload("w-1", gpus=2))
    lines: list[LogLine] | None = None

    async def follow() -> None:
        nonlocal lines
        lines = [line async for line in backend.logs("w-1", follow=True)]

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.lowlevel.checkpoint()
            await backend.cancel("w-1")
    assert lines == []


async def test_following_after_the_end_shows_all_and_ends(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("one", "two"))))
    await finished(backend, "w-1")
    assert await log_of(backend, "w-1", follow=True) == await log_of(backend, "w-1")


async def test_two_may_follow_at_once(backend: Backend, second_client: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("one", "two"), pause_s=0.1)))
    found = {}

    async def follow(client: Backend, name: str) -> None:
        found[name] = texts(await log_of(client, "w-1", follow=True))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, backend, "one")
        tasks.start_soon(follow, second_client, "other")
    assert found == {"one": ["one", "two"], "other": ["one", "two"]}


async def test_since_leaves_out_what_was_said_before(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("one", "two", "three", "four"), pause_s=0.1)))
    await finished(backend, "w-1")
    times = {line.text: line.time for line in await log_of(backend, "w-1")}
    middle = times["two"] + (times["three"] - times["two"]) / 2
    assert texts(await log_of(backend, "w-1", since=middle)) == ["three", "four"]
    assert texts(await log_of(backend, "w-1", since=middle, follow=True)) == ["three", "four"]


@decides_itself  # a pod's log does not tell them apart
async def test_stderr_is_told_from_stdout(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("out",), stderr=("err", "err too"))))
    lines = await log_of(backend, "w-1", follow=True)
    assert texts(lines, Stream.STDOUT) == ["out"]
    assert texts(lines, Stream.STDERR) == ["err", "err too"]


async def test_stderr_is_in_the_log(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("out",), stderr=("err",))))
    assert sorted(texts(await log_of(backend, "w-1", follow=True))) == ["err", "out"]


async def test_a_framed_object_is_a_report_and_its_neighbours_are_text(backend: Backend) -> None:
    prints = ("before", '\x1e{"report": "progress", "done": 1, "of": 2}', "after")
    await backend.submit(a_workload("w-1", command=program(prints)))
    lines = await log_of(backend, "w-1", follow=True)
    assert texts(lines) == ["before", "after"]
    assert reports(lines, "progress") == [{"report": "progress", "done": 1, "of": 2}]
    (line,) = [line for line in lines if line.report and line.report["report"] == "progress"]
    assert line.stream is Stream.REPORT


async def test_what_only_looks_like_a_report_is_text(backend: Backend) -> None:
    alike = ("\x1enot an object", "\x1e[1, 2]", "\x1e", '{"report": "end"}', '\x1e{"report": ')
    await backend.submit(a_workload("w-1", command=program(alike)))
    assert texts(await log_of(backend, "w-1", follow=True)) == list(alike)


async def test_a_last_line_without_an_end_is_a_line_and_the_report_after_it_a_report(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("one",), rest="half a li")))
    lines = await log_of(backend, "w-1", follow=True)
    assert texts(lines) == ["one", "half a li"]
    assert [report["code"] for report in reports(lines, "end")] == ["end.completed"]


async def test_the_start_is_reported_with_the_devices(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", gpus=1, command=program()))
    (started,) = reports(await log_of(backend, "w-1", follow=True), "started")
    assert len(started["devices"]) == 1
    assert started["node"]


async def test_any_text_comes_out_as_it_went_in(backend: Backend) -> None:
    strange = ("", "ünïcode 🚀", "tab\tand\rreturn", "other\x0bline\u2028ends\x85here\x0c", "  spaces  ", "x" * 50_000, "end")
    await backend.submit(a_workload("w-1", command=program(strange)))
    assert texts(await log_of(backend, "w-1", follow=True)) == list(strange)


async def test_ten_thousand_lines_are_all_there(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program((), counts=10_000)))
    assert texts(await log_of(backend, "w-1", follow=True)) == [f"line {number}" for number in range(1, 10_001)]


@runs_several
async def test_one_of_several_replicas_can_be_read_alone(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", replicas=2, command=program(("one", "two"))))
    lines = await log_of(backend, "w-1", follow=True)
    for rank in (0, 1):
        assert texts([line for line in lines if line.replica == rank]) == ["one", "two"]
    alone = await log_of(backend, "w-1", replica=1)
    assert texts(alone) == ["one", "two"]
    assert {line.replica for line in alone} == {1}


async def test_a_given_attempt_is_read(backend: Backend) -> None:
    for text in ("first", "second"):
        await backend.submit(a_workload("w-1", command=program((text,))))
        await said(backend, "w-1", text)
        await finished(backend, "w-1")
    assert texts(await log_of(backend, "w-1", attempt=1)) == ["first"]
    assert texts(await log_of(backend, "w-1", attempt=2)) == ["second"]
    assert texts(await log_of(backend, "w-1", attempt=1, follow=True)) == ["first"]


async def test_a_log_that_never_was_is_not_found(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program()))
    await finished(backend, "w-1")
    for which in ({"replica": 1}, {"attempt": 2}, {"attempt": 2, "follow": True}):
        with pytest.raises(NotFoundError, match="w-1"):
            await log_of(backend, "w-1", **which)


async def test_nobody_has_no_log(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        await log_of(backend, "nobody")
