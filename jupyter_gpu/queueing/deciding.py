"""Who starts, who must yield, and why the others wait: the decision of a whole step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from jupyter_gpu.queueing.decisions import Decision, State, Yielding
from jupyter_gpu.queueing.rounds import Calls, Facts, Pass
from jupyter_gpu.queueing.words import Words


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """A state, gone through until nothing changes."""

    facts: Facts
    step: Pass
    called: Calls


def decide(state: State) -> Decision:
    """Return who starts, who must yield, and why the others wait.

    It depends on nothing but the state, in whatever order its parts come; asked again while those who were told to yield are
    leaving, it tells no others.
    """
    return decision(settle(state))


def settle(state: State) -> Settled:
    """Go through all queues, again while somebody calls on others to yield.

    For what they free may go to others who stand before the one that called. One that called in vain is not to call at all.
    """
    facts = Facts(state)
    called: Calls = {}
    expected: dict[str, int] = {}
    barred: set[str] = set()
    served: set[str] = set()
    while True:
        step = Pass(facts, called, barred, served)
        step.run()
        if step.calls:
            served = set(step.got)
            called |= step.calls
            expected |= {claim.id: step.got[claim.id] for claim, _ in step.calls.values()}
            continue
        in_vain = {id for id, units in expected.items() if step.got[id] < units}
        if not in_vain:
            return Settled(facts, step, called)
        barred |= in_vain
        served = set()
        called = {key: call for key, call in called.items() if call[0].id not in barred}
        expected = {id: units for id, units in expected.items() if id not in barred}


def decision(settled: Settled) -> Decision:
    """Put what was settled into words."""
    facts, step, called = settled.facts, settled.step, settled.called
    callers = step.callers | {claim.id for claim, _ in step.coming.values() if claim.called}
    words = Words(facts.tree, facts.state, step.now, step.starving(), step.coming, callers)
    models: dict[str, Counter[str]] = {}
    for one in step.taken:
        if one.starts:
            models.setdefault(one.claim.id, Counter()).update({model: amount for (_, model), amount in one.pools.items()})
    starts = {
        claim.id: claim.replicas if claim.together else step.started[claim.id]
        for claim in {one.claim.id: one.claim for one in step.taken}.values()
        if step.started[claim.id]
    }
    leaving = [one.holding for one in step.leaving]
    reasons = {claim.id: words.why(claim, want, leaving) for claim, want in step.waiting}
    reasons |= {claim.id: words.gone(claim) for claim in facts.gone}
    positions: dict[str, int] = {}
    for members in step.lines:
        place = 0
        for claim, _ in members:
            if claim.id in reasons and claim.id not in starts and claim.id not in facts.runs:
                place += 1
                positions[claim.id] = place
    yielding = tuple(
        Yielding(victim.held.holding, by, words.preempted(victim, by))
        for _, (by, victim) in sorted(called.items(), key=lambda one: (one[0][0], one[0][1] or 0))
    )
    return Decision(starts, models, yielding, positions, reasons, _look_again_s(facts))


def _look_again_s(facts: Facts) -> float | None:
    """Return when the next one starves."""
    lines = {id(want.line): want.line for members in facts.lines.values() for _, want in members}.values()
    waits = [line.oldest_s for line in lines if line.oldest_s is not None and not line.has_starving]
    return min(waits) + facts.queues.starve_after_s if waits else None
