"""Scheduling stories: what is asked for, step by step, and who then holds devices, who waits, and who had to yield.

`tests/contract/test_stories.py` plays them on a place of ours, and `tests/cluster/test_kueue_stories.py` on the real Kueue:
what stands here is what Kueue decides, for every story that Kueue has. Where it has no such case, ``not_kueue`` says why.

Words: a step shows the state once all is settled, so one that yields has ended and waits again. Nothing here limits how long
it runs; it holds its devices until it is ended or has to yield.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jupyter_gpu.schema import CohortSpec, Preemption, QueueSet, QueueSpec, Quota

GPU = "nvidia.com/gpu"


class Rule(StrEnum):
    """By which right one had to yield: the fact ``rule`` of Reason ``end.preempted``."""

    IN_QUEUE = "in_queue"
    """To one of its own queue. Kueue: InClusterQueue."""
    RECLAIM = "reclaim"
    """It borrowed what another queue wants back. Kueue: InCohortReclamation."""
    BORROWING = "borrowing"
    """It borrowed, and so does the other, of higher priority. Kueue: InCohortReclaimWhileBorrowing."""


@dataclass(frozen=True)
class Submit:
    """One more Workload arrives."""

    name: str
    queue: str
    gpus: int
    """Of each replica."""
    priority: int = 0
    replicas: int = 1
    together: bool = True
    """Else as they fit; in Kueue each replica is then a Job of its own."""


@dataclass(frozen=True)
class End:
    """A Workload ends by itself, or is cancelled while it waits."""

    name: str


@dataclass(frozen=True)
class Pass:
    """So much time goes by."""

    seconds: float


@dataclass(frozen=True)
class Step:
    """Something happens, and then it stands so."""

    does: Submit | End | Pass
    holding: Mapping[str, int]
    """Devices by the name of who holds them."""
    waiting: tuple[str, ...] = ()
    """Who has something left to start; those of one queue in their order, next first."""
    preempted: Mapping[str, Rule] = field(default_factory=dict)
    """Who had to yield in this step."""


@dataclass(frozen=True)
class Story:
    """Queues, and what happens in them. There are as many devices as the nominal quotas come to."""

    name: str
    queues: QueueSet
    steps: tuple[Step, ...]
    not_kueue: str | None = None
    """Why Kueue has no such case, so that the story is ours alone."""

    @property
    def gpus(self) -> int:
        """Devices of the place."""
        shares = [one.quotas for one in self.queues.queues] + [one.quotas for one in self.queues.cohorts]
        return sum(int(quotas[GPU].nominal) for quotas in shares if GPU in quotas)


def _queue(
    name: str,
    nominal: int,
    cohort: str | None = None,
    *,
    borrowing_limit: int | None = None,
    lending_limit: int | None = None,
    **preemption: Any,
) -> QueueSpec:
    quota = Quota(nominal=nominal, borrowing_limit=borrowing_limit, lending_limit=lending_limit)
    return QueueSpec(name=name, cohort=cohort, quotas={GPU: quota}, preemption=Preemption(**preemption))


def _queues(*queues: QueueSpec, cohorts: tuple[CohortSpec, ...] = (), starve_after_s: float = 600.0) -> QueueSet:
    return QueueSet(queues=queues, cohorts=cohorts, starve_after_s=starve_after_s)


_TAKES_BACK: dict[str, Any] = {"reclaim_within_cohort": "any"}
_LOWER: dict[str, Any] = {"within_queue": "lower_priority"}
_LOWER_EVERYWHERE: dict[str, Any] = {**_LOWER, **_TAKES_BACK, "borrow_within_cohort": "lower_priority"}


STORIES: tuple[Story, ...] = (
    Story(
        "a queue borrows what its cohort does not use",
        _queues(_queue("vision", 2, "lab"), _queue("speech", 2, "lab")),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2, "b": 2}),
            Step(Submit("c", "vision", 1), {"a": 2, "b": 2}, ("c",)),
            Step(Submit("d", "speech", 1), {"a": 2, "b": 2}, ("c", "d")),  # it did not ask for the right to take back
            Step(End("b"), {"a": 2, "c": 1, "d": 1}),
        ),
    ),
    Story(
        "a queue without a cohort borrows nothing",
        _queues(_queue("vision", 2), _queue("speech", 2)),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 1), {"a": 2}, ("b",)),
            Step(Submit("c", "speech", 2), {"a": 2, "c": 2}, ("b",)),
            Step(End("c"), {"a": 2}, ("b",)),
        ),
    ),
    Story(
        "a queue borrows no more than its limit",
        _queues(_queue("vision", 2, "lab", borrowing_limit=1), _queue("speech", 2, "lab")),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 1), {"a": 2, "b": 1}),
            Step(Submit("c", "vision", 1), {"a": 2, "b": 1}, ("c",)),
            Step(Submit("d", "speech", 1), {"a": 2, "b": 1, "d": 1}, ("c",)),
            Step(End("d"), {"a": 2, "b": 1}, ("c",)),
            Step(End("a"), {"b": 1, "c": 1}),
        ),
    ),
    Story(
        "a queue lends no more than its limit",
        _queues(_queue("vision", 2, "lab"), _queue("speech", 2, "lab", lending_limit=1)),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2}, ("b",)),
            Step(Submit("c", "vision", 1), {"a": 2, "c": 1}, ("b",)),
            Step(Submit("d", "speech", 1), {"a": 2, "c": 1, "d": 1}, ("b",)),
            Step(End("a"), {"b": 2, "c": 1, "d": 1}),
        ),
    ),
    Story(
        "what was borrowed is given back to its owner, and had again when that is done",
        _queues(_queue("vision", 2, "lab", **_TAKES_BACK), _queue("speech", 2, "lab", **_TAKES_BACK)),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2, "b": 2}),
            Step(Submit("c", "speech", 2), {"a": 2, "c": 2}, ("b",), {"b": Rule.RECLAIM}),
            Step(End("c"), {"a": 2, "b": 2}),
        ),
    ),
    Story(
        "an owner takes back from borrowers of any priority, but no more than it needs",
        _queues(_queue("vision", 2, "lab"), _queue("speech", 3, "lab", **_TAKES_BACK)),
        (
            Step(Submit("a", "vision", 2, priority=9), {"a": 2}),
            Step(Submit("b", "vision", 2, priority=9), {"a": 2, "b": 2}),
            Step(Submit("c", "vision", 1, priority=9), {"a": 2, "b": 2, "c": 1}),
            Step(Submit("d", "speech", 1), {"a": 2, "b": 2, "d": 1}, ("c",), {"c": Rule.RECLAIM}),
            Step(Submit("e", "speech", 2), {"a": 2, "d": 1, "e": 2}, ("b", "c"), {"b": Rule.RECLAIM}),
        ),
    ),
    Story(
        "an owner with reclaim_within_cohort lower_priority takes back from lower ones only",
        _queues(_queue("vision", 2, "lab"), _queue("speech", 2, "lab", reclaim_within_cohort="lower_priority")),
        (
            Step(Submit("a", "vision", 4, priority=5), {"a": 4}),
            Step(Submit("b", "speech", 1, priority=5), {"a": 4}, ("b",)),
            Step(Submit("c", "speech", 1, priority=6), {"c": 1, "b": 1}, ("a",), {"a": Rule.RECLAIM}),
        ),
    ),
    Story(
        "cohorts of a larger cohort lend to each other",
        _queues(
            _queue("vision", 2, "research"),
            _queue("shop", 2, "products", **_TAKES_BACK),
            cohorts=(CohortSpec(name="research", parent="house"), CohortSpec(name="products", parent="house")),
        ),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2, "b": 2}),
            Step(Submit("c", "vision", 1), {"a": 2, "b": 2}, ("c",)),
            Step(Submit("d", "shop", 1), {"a": 2, "c": 1, "d": 1}, ("b",), {"b": Rule.RECLAIM}),
        ),
    ),
    Story(
        "a cohort lends its parent's other members no more than its limit",
        _queues(
            _queue("vision", 2, "research"),
            _queue("shop", 0, "products"),
            cohorts=(
                CohortSpec(name="research", parent="house"),
                CohortSpec(name="products", parent="house", quotas={GPU: Quota(nominal=2, lending_limit=1)}),
            ),
        ),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2}, ("b",)),
            Step(Submit("c", "vision", 1), {"a": 2, "c": 1}, ("b",)),
            Step(Submit("d", "shop", 1), {"a": 2, "c": 1, "d": 1}, ("b",)),
            Step(End("a"), {"b": 2, "c": 1, "d": 1}),
            Step(End("b"), {"c": 1, "d": 1}),
            Step(Submit("e", "shop", 2), {"c": 1, "d": 1, "e": 2}),
        ),
    ),
    Story(
        "members of a cohort share what is its own",
        _queues(
            _queue("vision", 1, "lab"),
            _queue("speech", 1, "lab"),
            cohorts=(CohortSpec(name="lab", quotas={GPU: Quota(nominal=2)}),),
        ),
        (
            Step(Submit("a", "vision", 1), {"a": 1}),
            Step(Submit("b", "speech", 3), {"a": 1, "b": 3}),
            Step(Submit("c", "vision", 1), {"a": 1, "b": 3}, ("c",)),
            Step(End("b"), {"a": 1, "c": 1}),
        ),
    ),
    Story(
        "higher priority goes first, and of equal ones who came first",
        _queues(_queue("vision", 2)),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2}, ("b",)),
            Step(Submit("c", "vision", 2), {"a": 2}, ("b", "c")),
            Step(Submit("d", "vision", 2, priority=3), {"a": 2}, ("d", "b", "c")),
            Step(End("a"), {"d": 2}, ("b", "c")),
            Step(End("d"), {"b": 2}, ("c",)),
            Step(End("b"), {"c": 2}),
        ),
    ),
    Story(
        "smaller work overtakes what does not fit",
        _queues(_queue("vision", 4)),
        (
            Step(Submit("a", "vision", 3), {"a": 3}),
            Step(Submit("b", "vision", 3), {"a": 3}, ("b",)),
            Step(Submit("c", "vision", 1), {"a": 3, "c": 1}, ("b",)),
            Step(End("c"), {"a": 3}, ("b",)),
            Step(End("a"), {"b": 3}),
        ),
    ),
    Story(
        "what becomes free is kept for the first in line once it was overtaken for long",
        _queues(_queue("vision", 4), starve_after_s=100),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2, "b": 2}),
            Step(Submit("big", "vision", 4), {"a": 2, "b": 2}, ("big",)),
            Step(End("a"), {"b": 2}, ("big",)),
            Step(Submit("c", "vision", 2), {"b": 2, "c": 2}, ("big",)),
            Step(Pass(101), {"b": 2, "c": 2}, ("big",)),
            Step(End("b"), {"c": 2}, ("big",)),
            Step(Submit("d", "vision", 2), {"c": 2}, ("big", "d")),
            Step(End("c"), {"big": 4}, ("d",)),
            Step(End("big"), {"d": 2}),
        ),
        not_kueue="with BestEffortFIFO smaller work overtakes for ever, and with StrictFIFO never",
    ),
    Story(
        "a gang starts when all of it fits",
        _queues(_queue("vision", 4)),
        (
            Step(Submit("a", "vision", 3), {"a": 3}),
            Step(Submit("gang", "vision", 1, replicas=2), {"a": 3}, ("gang",)),
            Step(Submit("c", "vision", 1), {"a": 3, "c": 1}, ("gang",)),
            Step(End("c"), {"a": 3}, ("gang",)),
            Step(End("a"), {"gang": 2}),
        ),
    ),
    Story(
        "a sweep starts as it fits, one after the other",
        _queues(_queue("vision", 3)),
        (
            Step(Submit("a", "vision", 1), {"a": 1}),
            Step(Submit("sweep", "vision", 1, replicas=4, together=False), {"a": 1, "sweep": 2}, ("sweep",)),
            Step(End("a"), {"sweep": 3}, ("sweep",)),
            Step(End("sweep"), {}),
        ),
    ),
    Story(
        "nobody has to yield where the queue does not say so",
        _queues(_queue("vision", 2)),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2, priority=100), {"a": 2}, ("b",)),
        ),
    ),
    Story(
        "one of lower priority yields to one of its queue, and starts again after it",
        _queues(_queue("vision", 2, **_LOWER)),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2}, ("b",)),
            Step(Submit("c", "vision", 2, priority=1), {"c": 2}, ("a", "b"), {"a": Rule.IN_QUEUE}),
            Step(End("c"), {"a": 2}, ("b",)),
        ),
    ),
    Story(
        "one of equal priority never yields under lower_priority",
        _queues(_queue("vision", 2, **_LOWER)),
        (
            Step(Submit("a", "vision", 2, priority=1), {"a": 2}),
            Step(Submit("b", "vision", 2, priority=1), {"a": 2}, ("b",)),
        ),
    ),
    Story(
        "under lower_or_newer_equal_priority a newer one yields to an older one, and not the other way",
        _queues(_queue("vision", 3, within_queue="lower_or_newer_equal_priority")),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 3), {"a": 2}, ("b",)),
            Step(Submit("c", "vision", 1), {"a": 2, "c": 1}, ("b",)),
            Step(End("a"), {"b": 3}, ("c",), {"c": Rule.IN_QUEUE}),
        ),
    ),
    Story(
        "of two the lower priority yields, though it came first",
        _queues(_queue("vision", 4, **_LOWER)),
        (
            Step(Submit("low", "vision", 2, priority=1), {"low": 2}),
            Step(Submit("middle", "vision", 2, priority=2), {"low": 2, "middle": 2}),
            Step(Submit("high", "vision", 2, priority=3), {"middle": 2, "high": 2}, ("low",), {"low": Rule.IN_QUEUE}),
        ),
    ),
    Story(
        "of equal ones the newest yields",
        _queues(_queue("vision", 6, **_LOWER)),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2, "b": 2}),
            Step(Submit("c", "vision", 2), {"a": 2, "b": 2, "c": 2}),
            Step(Submit("high", "vision", 2, priority=3), {"a": 2, "b": 2, "high": 2}, ("c",), {"c": Rule.IN_QUEUE}),
        ),
    ),
    Story(
        "newest means admitted last, not arrived last",
        _queues(_queue("vision", 4, **_LOWER)),
        (
            Step(Submit("a", "vision", 1), {"a": 1}),
            Step(Submit("b", "vision", 1), {"a": 1, "b": 1}),
            Step(Submit("late", "vision", 3), {"a": 1, "b": 1}, ("late",)),
            Step(Submit("d", "vision", 1), {"a": 1, "b": 1, "d": 1}, ("late",)),
            Step(End("a"), {"b": 1, "d": 1}, ("late",)),
            Step(End("b"), {"d": 1, "late": 3}),
            Step(Submit("high", "vision", 1, priority=3), {"d": 1, "high": 1}, ("late",), {"late": Rule.IN_QUEUE}),
        ),
    ),
    Story(
        "who turns out not to be needed is spared",
        _queues(_queue("vision", 4, **_LOWER)),
        (
            Step(Submit("large", "vision", 3), {"large": 3}),
            Step(Submit("small", "vision", 1), {"large": 3, "small": 1}),
            Step(Submit("high", "vision", 3, priority=3), {"small": 1, "high": 3}, ("large",), {"large": Rule.IN_QUEUE}),
        ),
    ),
    Story(
        "nobody yields where that would not be enough",
        _queues(_queue("vision", 4, **_LOWER)),
        (
            Step(Submit("a", "vision", 2, priority=9), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2, "b": 2}),
            Step(Submit("c", "vision", 3, priority=5), {"a": 2, "b": 2}, ("c",)),
        ),
    ),
    Story(
        "a gang yields as a whole",
        _queues(_queue("vision", 4, **_LOWER)),
        (
            Step(Submit("gang", "vision", 1, replicas=4), {"gang": 4}),
            Step(Submit("high", "vision", 1, priority=1), {"high": 1}, ("gang",), {"gang": Rule.IN_QUEUE}),
            Step(End("high"), {"gang": 4}),
        ),
    ),
    Story(
        "of a sweep only those replicas yield that must",
        _queues(_queue("vision", 3, **_LOWER)),
        (
            Step(Submit("sweep", "vision", 1, replicas=3, together=False), {"sweep": 3}),
            Step(Submit("high", "vision", 2, priority=1), {"high": 2, "sweep": 1}, ("sweep",), {"sweep": Rule.IN_QUEUE}),
            Step(End("high"), {"sweep": 3}),
        ),
    ),
    Story(
        "borrowers of other queues yield before those of the own queue",
        _queues(_queue("vision", 4, "lab", **_LOWER, **_TAKES_BACK), _queue("speech", 2, "lab")),
        (
            Step(Submit("own", "vision", 2), {"own": 2}),
            Step(Submit("lent", "speech", 4, priority=5), {"own": 2, "lent": 4}),
            Step(Submit("high", "vision", 2, priority=3), {"own": 2, "high": 2}, ("lent",), {"lent": Rule.RECLAIM}),
        ),
    ),
    Story(
        "a queue that only uses its own is left alone",
        _queues(_queue("vision", 2, "lab", **_LOWER_EVERYWHERE), _queue("speech", 2, "lab")),
        (
            Step(Submit("a", "speech", 2), {"a": 2}),
            Step(Submit("b", "vision", 2, priority=5), {"a": 2, "b": 2}),
            Step(Submit("c", "vision", 2, priority=9), {"a": 2, "c": 2}, ("b",), {"b": Rule.IN_QUEUE}),
        ),
    ),
    Story(
        "who would have to borrow makes no other queue yield",
        _queues(_queue("vision", 2, "lab", **_LOWER, **_TAKES_BACK), _queue("speech", 1, "lab"), _queue("text", 2, "lab")),
        (
            Step(Submit("a", "vision", 2, priority=5), {"a": 2}),
            Step(Submit("b", "speech", 3), {"a": 2, "b": 3}),
            Step(Submit("c", "vision", 2, priority=5), {"a": 2, "b": 3}, ("c",)),
        ),
    ),
    Story(
        "with borrow_within_cohort borrowers of lower priority yield to one that borrows",
        _queues(_queue("vision", 2, "lab", **_LOWER_EVERYWHERE), _queue("speech", 1, "lab"), _queue("text", 2, "lab")),
        (
            Step(Submit("a", "vision", 2, priority=5), {"a": 2}),
            Step(Submit("b", "speech", 3), {"a": 2, "b": 3}),
            Step(Submit("c", "vision", 2, priority=5), {"a": 2, "c": 2}, ("b",), {"b": Rule.BORROWING}),
        ),
    ),
    Story(
        "with borrow_within_cohort those of equal priority still do not yield",
        _queues(_queue("vision", 2, "lab", **_LOWER_EVERYWHERE), _queue("speech", 1, "lab"), _queue("text", 2, "lab")),
        (
            Step(Submit("a", "vision", 2, priority=5), {"a": 2}),
            Step(Submit("b", "speech", 3, priority=5), {"a": 2, "b": 3}),
            Step(Submit("c", "vision", 2, priority=5), {"a": 2, "b": 3}, ("c",)),
        ),
    ),
    Story(
        "max_priority_threshold spares those above it from one that borrows",
        _queues(
            _queue("vision", 2, "lab", **_LOWER_EVERYWHERE, max_priority_threshold=3),
            _queue("speech", 0, "lab"),
            _queue("text", 0, "lab"),
            _queue("video", 4, "lab"),
        ),
        (
            Step(Submit("a", "vision", 2, priority=9), {"a": 2}),
            Step(Submit("low", "speech", 2, priority=3), {"a": 2, "low": 2}),
            Step(Submit("middle", "text", 2, priority=4), {"a": 2, "low": 2, "middle": 2}),
            Step(
                Submit("c", "vision", 2, priority=9),
                {"a": 2, "middle": 2, "c": 2},
                ("low",),
                {"low": Rule.BORROWING},
            ),
            Step(Submit("d", "vision", 2, priority=9), {"a": 2, "middle": 2, "c": 2}, ("d", "low")),
        ),
    ),
    Story(
        "one that borrows makes lower ones of its own queue yield",
        _queues(_queue("vision", 2, "lab", **_LOWER, **_TAKES_BACK), _queue("speech", 2, "lab")),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 2), {"a": 2, "b": 2}),
            Step(Submit("c", "vision", 2, priority=1), {"a": 2, "c": 2}, ("b",), {"b": Rule.IN_QUEUE}),
        ),
    ),
    Story(
        "one that asks for more than its queue's own share makes nobody yield",
        _queues(_queue("vision", 2, "lab", **_LOWER, **_TAKES_BACK), _queue("speech", 2, "lab")),
        (
            Step(Submit("a", "vision", 4), {"a": 4}),
            Step(Submit("b", "vision", 3, priority=1), {"a": 4}, ("b",)),
            Step(Submit("c", "vision", 2, priority=1), {"c": 2}, ("b", "a"), {"a": Rule.IN_QUEUE}),
        ),
    ),
    Story(
        "with borrow_within_cohort one that asks for more than its queue's own share makes others yield, too",
        _queues(_queue("vision", 2, "lab", **_LOWER_EVERYWHERE), _queue("speech", 2, "lab")),
        (
            Step(Submit("a", "vision", 4), {"a": 4}),
            Step(Submit("b", "vision", 4, priority=1), {"b": 4}, ("a",), {"a": Rule.IN_QUEUE}),
        ),
    ),
    Story(
        "a cohort takes back for its members what is its own and another cohort borrows",
        _queues(
            _queue("vision", 1, "research", **_TAKES_BACK),
            _queue("shop", 2, "products"),
            cohorts=(
                CohortSpec(name="research", parent="house", quotas={GPU: Quota(nominal=3)}),
                CohortSpec(name="products", parent="house"),
            ),
        ),
        (
            Step(Submit("a", "shop", 2, priority=9), {"a": 2}),
            Step(Submit("b", "shop", 2, priority=9), {"a": 2, "b": 2}),
            Step(Submit("c", "vision", 3), {"a": 2, "c": 3}, ("b",), {"b": Rule.RECLAIM}),
        ),
    ),
    Story(
        "two queues take back what is theirs from one that borrows of both",
        _queues(_queue("vision", 2, "lab", **_TAKES_BACK), _queue("speech", 2, "lab", **_TAKES_BACK), _queue("text", 0, "lab")),
        (
            Step(Submit("a", "text", 2), {"a": 2}),
            Step(Submit("b", "text", 2), {"a": 2, "b": 2}),
            Step(Submit("c", "vision", 2), {"a": 2, "c": 2}, ("b",), {"b": Rule.RECLAIM}),
            Step(Submit("d", "speech", 1), {"c": 2, "d": 1}, ("a", "b"), {"a": Rule.RECLAIM}),
            Step(End("c"), {"d": 1, "a": 2}, ("b",)),
        ),
    ),
    Story(
        "who needs not borrow goes before who borrows, whatever their priorities",
        _queues(_queue("vision", 2, "lab"), _queue("speech", 2, "lab")),
        (
            Step(Submit("a", "speech", 4), {"a": 4}),
            Step(Submit("borrows", "vision", 4, priority=9), {"a": 4}, ("borrows",)),
            Step(Submit("owns", "speech", 2), {"a": 4}, ("borrows", "owns")),
            Step(End("a"), {"owns": 2}, ("borrows",)),
            Step(End("owns"), {"borrows": 4}),
        ),
    ),
    Story(
        "of two that borrow the higher priority goes first",
        _queues(_queue("vision", 1, "lab"), _queue("speech", 1, "lab"), _queue("text", 2, "lab")),
        (
            Step(Submit("a", "text", 4), {"a": 4}),
            Step(Submit("low", "vision", 3), {"a": 4}, ("low",)),
            Step(Submit("high", "speech", 3, priority=1), {"a": 4}, ("low", "high")),
            Step(End("a"), {"high": 3}, ("low",)),
        ),
    ),
    Story(
        "who had to yield keeps its place in line",
        _queues(_queue("vision", 2, **_LOWER)),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("high", "vision", 1, priority=1), {"high": 1}, ("a",), {"a": Rule.IN_QUEUE}),
            Step(Submit("b", "vision", 2), {"high": 1}, ("a", "b")),
            Step(End("high"), {"a": 2}, ("b",)),
        ),
    ),
    Story(
        "one that waits and is cancelled leaves its place to the next",
        _queues(_queue("vision", 2)),
        (
            Step(Submit("a", "vision", 2), {"a": 2}),
            Step(Submit("b", "vision", 1), {"a": 2}, ("b",)),
            Step(Submit("c", "vision", 2), {"a": 2}, ("b", "c")),
            Step(End("b"), {"a": 2}, ("c",)),
            Step(End("a"), {"c": 2}),
        ),
    ),
)
