"""How an attempt is ended so that its log and its end report stay, where that can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jupyter_gpu.backends.kubernetes.attempts import Attempt, Thing, has_started, rank_of
from jupyter_gpu.backends.kubernetes.manifests import labels
from jupyter_gpu.backends.kubernetes.objects import Objects
from jupyter_gpu.backends.kubernetes.phases import has_ended, status_of
from jupyter_gpu.errors import NotAllowedError, NotFoundError
from jupyter_gpu.schema import Phase, Reason

if TYPE_CHECKING:
    from jupyter_gpu.backends.kubernetes.client import Client

_AT_ONCE = {"spec": {"activeDeadlineSeconds": 1}}


class Stopper:
    """Ends attempts.

    Where every replica has started, its pod gets a deadline that has passed: the kubelet ends the program with its grace period,
    and keeps the pod, its log and its termination message. Else the Job is suspended: its controller makes no more pods and
    deletes those that are there (a kubelet that waits for an image or a volume looks at no deadline). So it is with a
    shorter grace than the pod's own, which only a deletion can give.
    """

    def __init__(self, client: Client, observe: Callable[[Thing], None]) -> None:
        self._client, self._observe = client, observe

    async def stop(self, attempt: Attempt, reason: Reason, grace_s: float | None = None) -> None:
        """Write down that an attempt must end, and why, and see to it; of several reasons the first stays."""
        is_shortened = grace_s is not None and grace_s < attempt.spec.grace_s
        suspend = is_shortened or not _all_have_started(attempt)
        await self._mark(attempt, reason, suspend=suspend)
        if not suspend:
            await self._set_deadlines(attempt, reason)
        elif is_shortened:
            await self._delete_pods(attempt, grace_s or 0)
        await self.take_keys_back(attempt)

    async def take_keys_back(self, attempt: Attempt) -> None:
        """Delete the Secret of an attempt that has not started or has ended."""
        phase = status_of(attempt).phase
        if attempt.spec.secrets and (phase is Phase.QUEUED or phase.is_final):
            await self._client.delete(Objects.SECRETS, attempt.name)

    async def _mark(self, attempt: Attempt, reason: Reason, *, suspend: bool) -> None:
        now = self._client.now().isoformat()
        annotations = {} if attempt.wish else {labels.CANCEL: reason.model_dump_json(), labels.CANCELLED_AT: now}
        if (started := status_of(attempt).started) and labels.STARTED not in attempt.annotations:
            annotations[labels.STARTED] = started.isoformat()
        change: dict[str, Any] = {"spec": {"suspend": True}} if suspend and not attempt.job["spec"].get("suspend") else {}
        if annotations or change:
            metadata = {"uid": attempt.uid, "annotations": annotations}
            self._observe(await self._client.patch(Objects.JOBS, attempt.name, {"metadata": metadata} | change))

    async def _set_deadlines(self, attempt: Attempt, reason: Reason) -> None:
        for pod in _living_pods(attempt):
            if not is_being_ended(pod):
                try:
                    await self._client.patch(Objects.PODS, pod["metadata"]["name"], _AT_ONCE)
                except NotFoundError:
                    continue
                except NotAllowedError:
                    await self._mark(attempt, reason, suspend=True)
                    return

    async def _delete_pods(self, attempt: Attempt, grace_s: float) -> None:
        seconds = max(1, math.ceil(grace_s))  # 0 would forget the pod before its program is gone
        for pod in _living_pods(attempt):
            await self._client.delete(Objects.PODS, pod["metadata"]["name"], gracePeriodSeconds=seconds)


def is_half_done(attempt: Attempt) -> bool:
    """Whether somebody wished an attempt's end, and did not live to see to it."""
    if not attempt.wish or attempt.job["spec"].get("suspend") or attempt.finished:
        return False
    return not _all_have_started(attempt) or any(not is_being_ended(pod) for pod in _living_pods(attempt))


def is_being_ended(pod: Thing) -> bool:
    """Whether a pod is on its way out."""
    return bool(pod["metadata"].get("deletionTimestamp") or pod["spec"].get("activeDeadlineSeconds"))


def _living_pods(attempt: Attempt) -> list[Thing]:
    return [pod for pod in attempt.pods if not has_ended(pod)]


def _all_have_started(attempt: Attempt) -> bool:
    started = {rank_of(pod) for pod in attempt.pods if has_started(pod)}
    return started >= set(range(attempt.spec.replicas))
