"""Whether an attempt that has ended is followed by another that the place makes by itself."""

from __future__ import annotations

from jupyter_gpu.schema import Kind, Phase, Reason, WorkloadSpec

PREEMPTED = "end.preempted"

MAY_HEAL = frozenset(
    {
        "end.exit_code",
        "end.signal",
        "end.out_of_memory",
        "end.terminated",
        "end.evicted",
        "end.node_lost",
        "end.reboot",
        "end.lost",
        "start.timeout",
    }
)
"""Reasons of ends that nobody wished for, and after which another try may go better."""


def tries_again(spec: WorkloadSpec, reason: Reason, failures: int) -> bool:
    """Return whether a Workload whose attempt ended is QUEUED again, with the same sequence.

    One that had to yield always is, and that is no failure; one that failed by itself is as often as ``retries`` says. A
    KERNEL never is, for its memory is gone.

    Args:
        spec: what was asked for.
        reason: why the attempt ended; not one that somebody wished for.
        failures: how many attempts had failed by themselves before this one.
    """
    if spec.kind is Kind.KERNEL:
        return False
    if reason.code == PREEMPTED:
        return True
    return reason.final_phase is Phase.FAILED and reason.code in MAY_HEAL and failures < spec.retries
