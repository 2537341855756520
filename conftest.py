"""What holds for every test: who is left out, and where fixtures come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_CLUSTER = "KUBECONFIG" in os.environ or "JUPYTER_GPU_TEST_CLUSTER" in os.environ

pytest_plugins = [
    f"tests.{plugin.parent.name}.plugin"
    for plugin in Path(__file__).parent.glob("tests/*/plugin.py")
    if plugin.parent.name == "cluster"
]


def pytest_report_header() -> str:
    """Say so when tests are left out."""
    return "cluster tests: " + ("at the cluster of KUBECONFIG" if _CLUSTER else "left out, for KUBECONFIG is not set")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a cluster where there is none."""
    if _CLUSTER:
        return
    left_out = [item for item in items if item.get_closest_marker("cluster")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
