"""The two roles of the design, section 9: what an account needs, and what lets it see more."""

from __future__ import annotations

from typing import Any

USER_ROLE, VIEWER_ROLE = "jupyter-gpu-user", "jupyter-gpu-viewer"

_USER_RULES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("batch", ("jobs",), ("create", "delete", "get", "list", "patch", "watch")),
    ("", ("pods",), ("delete", "get", "list", "patch", "watch")),
    ("", ("pods/log",), ("get",)),
    ("", ("pods/portforward",), ("create", "get")),  # a WebSocket starts as a GET
    ("", ("secrets",), ("create", "delete", "get", "list", "patch")),
    ("", ("configmaps",), ("create", "get")),
    ("", ("events",), ("list", "watch")),
    ("", ("resourcequotas",), ("list",)),
    ("coordination.k8s.io", ("leases",), ("create", "delete", "get", "list", "patch")),
)
_VIEWER_RULES = (
    ("", ("nodes", "pods"), ("list",)),
    ("", ("namespaces",), ("get",)),
)

# What each right is for, so that a missing one can be told in words.
PURPOSES = {
    ("batch", "jobs"): "run Workloads",
    ("", "pods"): "see how they stand, and end them",
    ("", "pods/log"): "read what they print",
    ("", "pods/portforward"): "reach their ports by the API server",
    ("", "secrets"): "give kernels their keys",
    ("", "configmaps"): "send along the program that stands beside the user's",
    ("", "events"): "tell why a pod is not made or can't mount something",
    ("", "resourcequotas"): "refuse at once what a ResourceQuota would never allow",
    ("coordination.k8s.io", "leases"): "tell which client holds a Workload, and end those that nobody does",
}


def user_role() -> dict[str, Any]:
    """Return the Role that is enough to run everything in a namespace."""
    return _role("Role", USER_ROLE, _USER_RULES)


def viewer_role() -> dict[str, Any]:
    """Return the ClusterRole for reading what a forecast needs: nodes, and who holds their devices."""
    return _role("ClusterRole", VIEWER_ROLE, _VIEWER_RULES)


def user_rights() -> list[tuple[str, str, str]]:
    """Return (verb, API group, resource) of every right of `user_role`."""
    return [(verb, group, resource) for group, resources, verbs in _USER_RULES for resource in resources for verb in verbs]


def _role(kind: str, name: str, rules: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]) -> dict[str, Any]:
    listed = [{"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)} for group, resources, verbs in rules]
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": listed}
