"""When an event is written: at every change of a phase or of a reason's code, by whomever, and never for other words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpu.backends.local import rows, stories, waiting, writing
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.store import Store
from jupyter_gpu.schema import Event, Phase, Reason
from tests.builders import a_workload


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store in which one Workload waits."""
    opened = Store(tmp_path / "store.db")
    with opened.transaction() as connection:
        writing.insert(connection, a_workload("w-1"), 1, Moment.present())
    yield opened
    opened.close()


def _wait(store: Store, code: str, message: str = "m") -> None:
    with store.transaction() as connection:
        waiting.note_reasons(connection, [(writing.json_of(Reason(code=code, message=message)), False, "w-1")])


def _told(store: Store) -> list[tuple[int, Phase, str | None]]:
    return [(event.attempt, event.phase, event.reason and event.reason.code) for event in stories.story(store, "w-1")]


def test_why_it_waits_is_part_of_its_arrival(store: Store) -> None:
    assert _told(store) == [(1, Phase.QUEUED, None)]
    _wait(store, "queue.busy")
    assert _told(store) == [(1, Phase.QUEUED, "queue.busy")]


def test_another_code_is_news_and_other_words_are_not(store: Store) -> None:
    _wait(store, "queue.busy", "two are free")
    _wait(store, "queue.busy", "one is free")
    _wait(store, "queue.quota")
    _wait(store, "queue.busy")
    assert _told(store) == [(1, Phase.QUEUED, code) for code in ("queue.busy", "queue.quota", "queue.busy")]
    assert stories.story(store, "w-1")[0].reason == Reason(code="queue.busy", message="two are free")


def test_a_whole_life_is_told_with_its_times(store: Store) -> None:
    moment = Moment.present()
    with store.transaction() as connection:
        waiting.admit(connection, "w-1", "[]", moment)
        writing.change(connection, "w-1", 1, phase=Phase.RUNNING.value, started=moment.wall_s + 1)
        writing.end(connection, rows.get(store, "w-1", "here"), Reason(code="end.lost", message="m"), moment, moment.wall_s + 2)
        row = rows.get(store, "w-1", "here")
        stories.keep_attempt(connection, row)
        writing.try_again(connection, row, moment, failures=1, ran_s=2)
    assert _told(store) == [
        (1, Phase.QUEUED, None),
        (1, Phase.STARTING, None),
        (1, Phase.RUNNING, None),
        (1, Phase.FAILED, "end.lost"),
        (2, Phase.QUEUED, None),
    ]
    told = stories.story(store, "w-1")
    assert [_seconds(event, moment) for event in told[1:]] == [0, 1, 2, 0]
    assert stories.has_attempt(store, "w-1", 1)


def test_what_did_not_happen_in_the_end_is_not_told(store: Store) -> None:
    with pytest.raises(RuntimeError, match="cut off"), store.transaction() as connection:
        waiting.admit(connection, "w-1", "[]", Moment.present())
        raise RuntimeError("cut off")
    assert _told(store) == [(1, Phase.QUEUED, None)]


def test_a_new_request_goes_on_with_the_story_of_the_old(store: Store) -> None:
    moment = Moment.present()
    with store.transaction() as connection:
        writing.end(connection, rows.get(store, "w-1", "here"), Reason(code="end.cancelled", message="m"), moment)
        stories.replace(connection, "w-1")
        writing.insert(connection, a_workload("w-1"), 2, moment)
    assert _told(store) == [(1, Phase.QUEUED, None), (1, Phase.CANCELLED, "end.cancelled"), (2, Phase.QUEUED, None)]


def _seconds(event: Event, moment: Moment) -> float:
    return round(event.time.timestamp() - moment.wall_s, 3)
