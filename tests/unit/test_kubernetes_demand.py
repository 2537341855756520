"""What Workloads of a namespace want and have, and what there is of devices and quota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_gpu.backends.kubernetes import demand
from jupyter_gpu.schema import Quota, Start, Stock
from tests.unit.test_kubernetes_phases import CANCELLED, NOW, pod, running, terminated
from tests.unit.test_kubernetes_story import BEGIN, attempt

GPU = "nvidia.com/gpu"


def node(name: str = "n1", gpus: int = 4, product: str = "A100", *, ready: bool = True, **spec: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": NOW}
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product} if product else {}},
        "spec": spec,
        "status": {"allocatable": {"cpu": "8", GPU: str(gpus)}, "conditions": [condition]},
    }


def quota(hard: Mapping[str, str], used: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": dict(hard), **spec}, "status": {"used": dict(used or {})}}


def test_what_has_no_node_is_wanted() -> None:
    claim = demand.claim_of(attempt(pod(node=None), gpus=2, priority=3))
    assert claim
    assert (claim.id, claim.queue, claim.priority, claim.gpus, claim.device) == ("w-1", "default", 3, 2, GPU)
    assert (claim.sequence, claim.since_s) == (7, BEGIN.timestamp())
    assert demand.claim_of(attempt(gpus=2, priority=3)) == claim


def test_what_runs_or_has_ended_or_must_end_wants_nothing() -> None:
    assert demand.claim_of(attempt(running(), gpus=1)) is None
    assert demand.claim_of(attempt(terminated(0), gpus=1)) is None
    assert demand.claim_of(attempt(gpus=1, wish=CANCELLED)) is None


def test_what_has_a_node_is_held() -> None:
    (holding,) = demand.holdings_of(attempt(running(), gpus=2), {"n1": node()})
    assert (holding.id, holding.device, holding.holds[GPU], holding.models) == ("w-1", GPU, 2, {"A100": 2})
    assert (holding.rank, holding.leaving, holding.preemptible, holding.ends_by_s) == (None, False, False, None)
    assert holding.since_s == BEGIN.timestamp()


def test_what_is_limited_tells_when_it_ends_at_the_latest() -> None:
    (holding,) = demand.holdings_of(attempt(running(), gpus=1, max_runtime_s=100, grace_s=5), {})
    assert holding.ends_by_s == BEGIN.timestamp() + 105


def test_of_those_that_start_as_they_fit_each_holds_for_itself_and_the_rest_is_wanted() -> None:
    sweep = attempt(running(rank=0), running(rank=1), gpus=1, replicas=4, max_parallel=3, start=Start.AS_THEY_FIT)
    assert [holding.rank for holding in demand.holdings_of(sweep, {})] == [0, 1]
    claim = demand.claim_of(sweep)
    assert claim
    assert (claim.replicas, claim.at_once) == (2, 1)


def test_devices_are_counted_by_model_and_those_of_nodes_that_take_no_pods_are_not_free() -> None:
    nodes = {
        "n1": node("n1", 4, "A100"),
        "n2": node("n2", 2, "A100"),
        "n3": node("n3", 8, "H200", unschedulable=True),
        "n4": node("n4", 1, "", ready=False),
    }
    assert demand.stocks_of(nodes, {"n1": {GPU: 3}, "n2": {GPU: 2}}) == (
        Stock(GPU, "", 1, 0),
        Stock(GPU, "A100", 6, 1),
        Stock(GPU, "H200", 8, 0),
    )


def test_a_quota_is_the_share_of_the_one_queue() -> None:
    quotas = [
        quota({"requests.nvidia.com/gpu": "4", "requests.cpu": "16", "pods": "10"}),
        quota({"requests.nvidia.com/gpu": "2", "requests.memory": "1Gi"}),
        quota({"requests.nvidia.com/gpu": "1"}, scopes=["BestEffort"]),
    ]
    (queue,) = demand.queue_set_of(quotas, {GPU: 8, "amd.com/gpu": 2}).queues
    assert queue.name == "default"
    assert queue.quotas == {
        GPU: Quota(nominal=2),
        "amd.com/gpu": Quota(nominal=2),
        "cpu": Quota(nominal=16),
        "memory": Quota(nominal=2**30),
    }


def test_without_a_quota_nothing_is_shared_out() -> None:
    assert demand.queue_set_of([quota({"pods": "3"})], {GPU: 2}).queues == ()


def test_what_others_hold_of_the_quota_is_told_as_one() -> None:
    quotas = [quota({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "3"})]
    mine = list(demand.asked_by([attempt(running(), gpus=1)]))
    others = demand.held_by_others(quotas, mine, 5.0)
    assert others
    assert (others.holds, others.device, others.preemptible) == ({GPU: 2}, GPU, False)
    assert demand.held_by_others([quota({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "1"})], mine, 5.0) is None


def test_what_has_no_node_yet_counts_as_ours() -> None:
    """A ResourceQuota counts a pod from when it is made."""
    quotas = [quota({"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "3"})]
    mine = demand.asked_by([attempt(running(), gpus=1), attempt(pod(node=None), gpus=2), attempt(terminated(0), gpus=4)])
    assert demand.held_by_others(quotas, mine, 5.0) is None


def test_where_nodes_cannot_be_read_the_quota_tells_what_there_is() -> None:
    quotas = [quota({"requests.nvidia.com/gpu": "4", "requests.cpu": "9"}, {"requests.nvidia.com/gpu": "3"})]
    assert demand.stocks_of_quotas(quotas) == (Stock(GPU, "", 4, 1),)
