"""Which nodes have a product, and what is refused for it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from jupyter_gpu.backends.kubernetes.client import Client
from jupyter_gpu.backends.kubernetes.discovery import Discovery
from jupyter_gpu.backends.kubernetes.products import fitting_nodes, product_values
from jupyter_gpu.errors import QuotaExceededError
from jupyter_gpu.schema import KubernetesSettings, Resources
from tests.builders import a_workload

GPU, PRODUCT = "nvidia.com/gpu", "nvidia.com/gpu.product"


def a_node(name: str, product: str | None, **devices: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "256Gi", **(devices or {GPU: "4"})}
    labels = {PRODUCT: product} if product else None
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": amounts, "capacity": amounts}}


NODES = [
    a_node("small", "NVIDIA-A100-SXM4-40GB"),
    a_node("large", "NVIDIA-A100-SXM4-80GB", **{GPU: "8"}),
    a_node("other", "NVIDIA-RTX-A6000"),
    a_node("unlabelled", None),
    a_node("plain", "NVIDIA-A100-SXM4-40GB", cpu="4"),
]


def names(resources: Resources) -> list[str]:
    return [node["metadata"]["name"] for node in fitting_nodes(resources, NODES)]


def test_nodes_fit_whose_label_contains_the_product() -> None:
    assert names(Resources(gpus=1, product="a100")) == ["small", "large"]
    assert names(Resources(gpus=1, product="A100-SXM4-80GB")) == ["large"]
    assert names(Resources(gpus=1, product="RTX A6000")) == ["other"]
    assert names(Resources(gpus=1, product="H100")) == []


def test_all_nodes_fit_where_no_product_is_asked_for() -> None:
    assert len(names(Resources(gpus=1))) == len(names(Resources(product="A100"))) == len(NODES)


def test_the_products_there_are_are_those_of_nodes_with_such_devices() -> None:
    assert product_values(Resources(gpus=1), NODES) == ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB", "NVIDIA-RTX-A6000")
    assert product_values(Resources(accelerator="amd.com/gpu", gpus=1), NODES) == ()


def a_discovery(**settings: Any) -> Discovery:
    """Return what has been found out of a cluster with these nodes."""
    discovery = Discovery(cast(Client, None), KubernetesSettings(**settings))
    discovery._nodes, discovery._read_at = NODES, float("inf")
    return discovery


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            Resources(gpus=1, product="H100"),
            r"1 nvidia.com/gpu \(H100\): it has none; its products are NVIDIA-A100-SXM4-40GB, NVIDIA-A100-SXM4-80GB, NVIDIA-R",
        ),
        (Resources(gpus=8, product="A6000"), "one node of this cluster can never give 8 nvidia.com/gpu: it has 4"),
        (
            Resources(accelerator="amd.com/gpu", gpus=1, product="MI300"),
            "can never give 1 amd.com/gpu: it has none; there is 20 nvidia",
        ),
    ],
    ids=["none", "too few of it", "no such device"],
)
async def test_a_product_that_can_not_be_had_is_refused_with_what_there_is(asked: Resources, words: str) -> None:
    with pytest.raises(QuotaExceededError, match=words):
        await a_discovery().check(a_workload(resources=asked))


async def test_a_product_of_a_node_that_may_still_come_is_not_refused() -> None:
    spec = a_workload(resources=Resources(gpus=1, product="H100"))
    discovery = a_discovery(autoscaled=True)
    await discovery.check(spec)
    assert discovery.products(spec) == ()


async def test_what_fits_is_what_the_pod_will_name() -> None:
    spec = a_workload(resources=Resources(gpus=8, product="A100"))
    discovery = a_discovery()
    await discovery.check(spec)
    assert discovery.products(spec) == ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB")
