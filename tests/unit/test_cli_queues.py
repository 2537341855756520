"""``jupyter gpu queues`` and ``priority``: the shares of departments, and who comes first."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from jupyter_gpu.errors import ConflictError, InvalidRequestError
from jupyter_gpu.schema import Missing, Place, QueueSet
from jupyter_gpu.verbs import queue_file
from tests.builders import a_workload
from tests.homes import VirtualPlace

_GPU = "nvidia.com/gpu"
_TWO = """
queues:
  vision:
    cohort: lab
    quotas: {nvidia.com/gpu: {nominal: 2}}
  speech:
    cohort: lab
    quotas: {nvidia.com/gpu: {nominal: 2}}
"""


def _names(place: VirtualPlace) -> set[str]:
    return {queue["name"] for queue in place.cli("queues", "show", "--json").data["queues"]}


# ---- show


def test_where_nothing_is_set_one_queue_has_everything(virtual: VirtualPlace) -> None:
    result = virtual.cli("queues", "show")
    assert result.exit_code == 0
    assert "no queues are set, so one has everything; `jupyter gpu queues apply FILE` sets them" in result.out
    assert _names(virtual) == {"default"}


def test_show_tells_shares_what_is_used_what_is_borrowed_and_what_is_lent(virtual: VirtualPlace) -> None:
    virtual.apply(_TWO)
    virtual.submit(a_workload("w-1", gpus=3, queue="vision"), a_workload("w-2", gpus=2, queue="speech"))
    queues = {queue["name"]: queue for queue in virtual.cli("queues", "show", "--json").data["queues"]}
    assert queues["vision"]["used"][_GPU] == 3 and queues["vision"]["borrowed"] == {_GPU: 1}
    assert queues["speech"]["waiters"] == ["w-2"] and queues["speech"]["lent"] == {_GPU: 1}
    lines = [line.split() for line in virtual.cli("queues", "show").out.splitlines()]
    assert ["cohort", "lab"] in lines
    assert ["vision", _GPU, "2", "3", "1", "0", "all", "all", "1", "0"] in lines
    assert ["speech", _GPU, "2", "0", "0", "1", "all", "all", "0", "1"] in lines


def test_cohorts_stand_below_their_parents(virtual: VirtualPlace) -> None:
    virtual.apply(_TWO + "cohorts: {lab: {parent: institute}}\n")
    out = virtual.cli("queues", "show").out
    assert out.index("cohort institute") < out.index("  cohort lab") < out.index("    vision")


def test_status_tells_the_share_in_a_queues_heading(virtual: VirtualPlace) -> None:
    virtual.apply(_TWO)
    virtual.submit(a_workload("w-1", gpus=3, queue="vision"))
    assert "queue vision: 3 of 2 nvidia.com/gpu (1 borrowed), 1 hold devices, 0 wait" in virtual.cli("status").out


def test_queues_that_are_not_ours_to_set_are_shown_as_such(virtual: VirtualPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = virtual.backend.describe

    async def of_others() -> Place:
        missing = Missing(what="cluster queues", why="quotas can't be told", right="list clusterqueues")
        return (await describe()).model_copy(update={"decides": False, "missing": (missing,)})

    monkeypatch.setattr(virtual.backend, "describe", of_others)
    out = virtual.cli("queues", "show").out
    assert "its queues are set by those who run it, and are only shown here" in out
    assert "cluster queues can't be read: quotas can't be told (needs the right to list clusterqueues)" in out
    assert virtual.cli("queues", "show", "--json").data["ours"] is False


# ---- apply


def test_apply_says_what_was_added_changed_removed_and_kept(virtual: VirtualPlace) -> None:
    first = virtual.apply(_TWO)
    assert first.exit_code == 0 and "set: 2 added, 1 removed" in first.out
    second = virtual.apply(_TWO.replace("nominal: 2", "nominal: 1", 1).replace("speech", "robots"))
    lines = [" ".join(line.split()) for line in second.out.splitlines()]
    assert "changed queue vision quotas['nvidia.com/gpu'].nominal: 2 -> 1" in lines
    assert "removed queue speech" in lines and any(line.startswith("added queue robots") for line in lines)
    assert "set: 1 added, 1 removed, 1 changed" in lines
    third = virtual.apply(_TWO.replace("nominal: 2", "nominal: 1", 1).replace("speech", "robots"))
    assert "kept queue vision" in " ".join(third.out.split()) and "\nnothing changed\n" in third.out


def test_apply_as_json_is_a_list_of_changes(virtual: VirtualPlace, tmp_path: Path) -> None:
    path = tmp_path / "queues.json"
    path.write_text(json.dumps({"queues": {"vision": {"quotas": {_GPU: {"nominal": 4}}}}}))
    data = virtual.cli("queues", "apply", str(path), "--json").data
    assert data["dry_run"] is False and data["place"] == "local"
    assert data["changes"] == [
        {"kind": "queue", "name": "vision", "change": "added", "details": [f"quotas['{_GPU}'].nominal: 4"]},
        {"kind": "queue", "name": "default", "change": "removed", "details": []},
    ]


def test_a_dry_run_says_the_same_and_changes_nothing(virtual: VirtualPlace, tmp_path: Path) -> None:
    path = tmp_path / "queues.yaml"
    path.write_text(_TWO)
    result = virtual.cli("queues", "apply", str(path), "--dry-run")
    assert result.exit_code == 0 and "nothing was changed (--dry-run)" in result.out and "vision" in result.out
    assert _names(virtual) == {"default"}


def test_what_may_not_be_meant_is_noted(virtual: VirtualPlace) -> None:
    result = virtual.apply("queues: {vision: {quotas: {nvidia.com/gpu: {nominal: 5}}}}")
    assert result.exit_code == 0
    assert "note: kernels of profile 'gpu' will be refused: its queue is 'default', which is not among these" in result.out
    assert "note: the shares add up to 5 nvidia.com/gpu, and local has 4: not all can have theirs at once" in result.out
    assert "note:" not in virtual.apply("queues: {default: {quotas: {nvidia.com/gpu: {nominal: 4}}}}").out


def test_a_file_may_come_in_on_stdin(virtual: VirtualPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(_TWO))
    assert virtual.cli("queues", "apply", "-").exit_code == 0
    assert _names(virtual) == {"vision", "speech"}


def test_an_empty_set_leads_back_to_one_queue(virtual: VirtualPlace) -> None:
    virtual.apply(_TWO)
    assert virtual.apply("queues: {}").exit_code == 0
    assert _names(virtual) == {"default"}


def test_the_example_can_be_read() -> None:
    path = Path(__file__).parents[2] / "examples" / "queues.yaml"
    queues = queue_file.read(path.read_text(), path.name)
    assert [queue.name for queue in queues.queues] == ["vision", "speech", "default"]


@dataclass(frozen=True)
class Bad:
    """One file that is refused, and what is said of it."""

    label: str
    text: str
    says: tuple[str, ...]
    exit_code: int = 2


_BAD = (
    Bad("nothing at all", "", ("is empty", "`queues: {}`")),
    Bad("no queues", "starve_after_s: 5", ("names no queues", "`queues:`")),
    Bad("no mapping", "- vision", ("must be a mapping of names to values",)),
    Bad("no YAML", "queues: [vision", ("can't be read", "in line 1")),
    Bad("no JSON", '{"queues": ', ("is no JSON",)),
    Bad("two documents", "queues: {}\n---\nqueues: {}", ("another document",)),
    Bad("an object of Python's", "!!python/object/apply:os.getcwd []", ("can't be read", "os.getcwd")),
    Bad(
        "a cycle of cohorts",
        "queues: {v: {cohort: a}}\ncohorts: {a: {parent: b}, b: {parent: c}, c: {parent: a}}",
        ("the cohorts a > b > c > a form a cycle", "take the parent from one"),
    ),
    Bad("no queues after the colon", "queues:", ("queues must be a mapping of names", "`queues: {}`")),
    Bad("a number of thousands of digits", '{"queues": {}, "starve_after_s": ' + "9" * 5000 + "}", ("is no JSON", "digits")),
    Bad("a cohort without a name", "queues: {v: {cohort: ''}}", ("queues.v.cohort: must not be empty",)),
    Bad(
        "a part of a device",
        "queues: {v: {quotas: {nvidia.com/gpu: {nominal: 0.5}}}}",
        ("queue 'v', nvidia.com/gpu: nominal must be a whole number of devices, and is 0.5",),
    ),
    Bad(
        "cohorts without an end",
        "queues: {v: }\ncohorts: {" + ", ".join(f"c{n}: {{parent: c{n + 1}}}" for n in range(40)) + "}",
        ("cohort 'c0' has more than 31 others above it",),
    ),
    Bad("a cohort in itself", "queues: {v: }\ncohorts: {a: {parent: a}}", ("a > a form a cycle",)),
    Bad(
        "a negative quota",
        "queues: {vision: {quotas: {nvidia.com/gpu: {nominal: -1}}}}",
        ("queues.vision.quotas['nvidia.com/gpu'].nominal", "can't be negative", "given: -1"),
    ),
    Bad(
        "a quota in words",
        "queues: {vision: {quotas: {nvidia.com/gpu: {nominal: four}}}}",
        ("queues.vision.quotas['nvidia.com/gpu'].nominal", "'four' is no amount", "like 4"),
    ),
    Bad(
        "a quota that is true",
        "queues: {vision: {quotas: {nvidia.com/gpu: {nominal: yes}}}}",
        ("queues.vision.quotas['nvidia.com/gpu'].nominal", "not true or false"),
    ),
    Bad(
        "a quota without an end",
        "queues: {vision: {quotas: {cpu: {nominal: .inf}}}}",
        ("queues.vision.quotas.cpu.nominal", "finite"),
    ),
    Bad(
        "a bare number for a quota",
        "queues: {vision: {quotas: {nvidia.com/gpu: 4}}}",
        ("queues.vision.quotas['nvidia.com/gpu']", "must be a mapping", "given: 4"),
    ),
    Bad(
        "an unknown resource",
        "queues: {vision: {quotas: {acme.com/npu: {nominal: 1}}}}",
        ("'vision'", "'acme.com/npu'", "nvidia.com/gpu"),
    ),
    Bad(
        "two queues of one name",
        "queues: [{name: vision}, {name: vision}]",
        ("the name 'vision' is there twice", "rename one"),
    ),
    Bad(
        "two queues of one name, by key",
        "queues:\n  vision: {}\n  vision: {}",
        ("'vision' is there twice in one place", "rename one", "in line 3"),
    ),
    Bad(
        "two queues of one name, in JSON",
        '{"queues": {"vision": {}, "vision": {}}}',
        ("'vision' is there twice in one place", "rename one"),
    ),
    Bad("a queue without a name", "queues: [{cohort: lab}]", ("queues[0].name is missing",)),
    Bad("two names of one queue", "queues: {vision: {name: speech}}", ("'vision'", "'speech'", "write it once")),
    Bad(
        "a misspelt field",
        "queues: {vision: {qotas: {}}}",
        ("queues.vision.qotas: there is no such setting", "'quotas' may be meant"),
    ),
    Bad(
        "a rule that there is not",
        "queues: {vision: {preemption: {within_queue: always}}}",
        ("queues.vision.preemption.within_queue", "'never', 'lower_priority'", "given: 'always'"),
    ),
    Bad(
        "a limit without a cohort",
        "queues: {vision: {quotas: {nvidia.com/gpu: {nominal: 1, borrowing_limit: 1}}}}",
        ("'vision'", "nvidia.com/gpu", "without a cohort"),
    ),
    Bad(
        "more lent than there is",
        "queues: {vision: {cohort: lab, quotas: {nvidia.com/gpu: {nominal: 1, lending_limit: 2}}}}",
        ("queues.vision.quotas['nvidia.com/gpu']", "lending_limit 2 is more than nominal 1"),
    ),
    Bad("a negative time", "queues: {v: }\nstarve_after_s: -1", ("starve_after_s", "at least 0", "given: -1")),
    Bad("a queue that is gone while it holds work", "queues: {vision: {}}", ("'default'", "w-1"), exit_code=4),
)


@pytest.mark.parametrize("bad", _BAD, ids=lambda bad: bad.label)
def test_a_bad_file_is_refused_by_its_cause_and_changes_nothing(virtual: VirtualPlace, bad: Bad) -> None:
    virtual.submit(a_workload("w-1", gpus=1))
    before = virtual.cli("queues", "show", "--json").data
    result = virtual.apply(bad.text)
    assert result.exit_code == bad.exit_code, result.out
    assert result.out == "" and "Traceback" not in result.err
    for words in bad.says:
        assert words in result.err
    assert "Input should" not in result.err and "Extra inputs" not in result.err
    assert virtual.cli("queues", "show", "--json").data == before


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
def test_a_file_that_cant_be_read_is_named(virtual: VirtualPlace, tmp_path: Path, kind: str) -> None:
    path = tmp_path if kind == "folder" else tmp_path / "queues.yaml"
    if kind == "binary":
        path.write_bytes(b"\xff\xfe")
    result = virtual.cli("queues", "apply", str(path))
    assert result.exit_code == 2 and str(path) in result.err


# ---- priority


def test_a_priority_moves_what_waits_in_its_line(virtual: VirtualPlace) -> None:
    virtual.submit(*(a_workload(f"w-{number}", gpus=4) for number in (1, 2, 3)))
    result = virtual.cli("priority", "w-3", "5")
    assert (result.exit_code, result.out) == (0, "w-3 has priority 5, not 0; number 1 in line (was 2)\n")
    data = virtual.cli("priority", "w-3", "-5", "--json").data
    assert data == {"id": "w-3", "name": "w-3", "was": 5, "priority": -5, "phase": "queued", "position": 2}


@pytest.mark.parametrize(
    ("words", "exit_code", "says"),
    [
        (("w-1", "2147483648"), 2, "2147483648 is not in the range"),
        (("w-1", "-2147483649"), 2, "-2147483649 is not in the range"),
        (("w-1", "high"), 2, "'high' is not a valid integer"),
        (("w-1",), 2, "Missing argument 'NUMBER'"),
        (("nobody", "1"), 3, "no workload 'nobody'"),
        (("w-2", "1"), 4, "w-2"),
    ],
)
def test_a_priority_that_cant_be_is_refused(virtual: VirtualPlace, words: tuple[str, ...], exit_code: int, says: str) -> None:
    virtual.submit(a_workload("w-1", gpus=1), a_workload("w-2", gpus=1))
    virtual.cli("cancel", "w-2")
    virtual.backend.advance(60)
    result = virtual.cli("priority", *words)
    assert result.exit_code == exit_code and says in result.err
    assert virtual.home.gpu().get("w-1").spec.priority == 0


# ---- from Python


def test_python_sets_and_shows_queues_too(virtual: VirtualPlace) -> None:
    with virtual.home.gpu() as gpu:
        changes = gpu.apply_queues({"queues": {"vision": {"quotas": {_GPU: {"nominal": 4}}}}})
        assert [(one.name, one.change.value) for one in changes] == [("vision", "added"), ("default", "removed")]
        assert [queue.name for queue in gpu.queues()] == ["vision"]
        with pytest.raises(InvalidRequestError, match=r"queues\.vision: must be a mapping"):
            gpu.apply_queues({"queues": {"vision": 3}})
        gpu.connection.call(lambda services: services.backend.submit(a_workload("w-1", gpus=1, queue="vision"))).result()
        with pytest.raises(ConflictError, match="vision"):
            gpu.apply_queues(QueueSet())
        assert gpu.set_priority("w-1", 3).spec.priority == 0
        assert gpu.get("w-1").spec.priority == 3
        with pytest.raises(InvalidRequestError, match="must be less than"):
            gpu.set_priority("w-1", 2**31)
