"""The kinds of objects that we read and write, and where the API server has them."""

from __future__ import annotations

from enum import StrEnum

METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""What to accept so that a list holds no contents, such as the values of Secrets."""


class Objects(StrEnum):
    """Where objects of a kind are found."""

    JOBS = "/apis/batch/v1/namespaces/{namespace}/jobs"
    PODS = "/api/v1/namespaces/{namespace}/pods"
    SECRETS = "/api/v1/namespaces/{namespace}/secrets"
    CONFIGMAPS = "/api/v1/namespaces/{namespace}/configmaps"
    EVENTS = "/api/v1/namespaces/{namespace}/events"
    QUOTAS = "/api/v1/namespaces/{namespace}/resourcequotas"
    LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    NAMESPACES = "/api/v1/namespaces"
    NODES = "/api/v1/nodes"
    ALL_PODS = "/api/v1/pods"
    SELF_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    RULES_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"

    @property
    def plural(self) -> str:
        """The resource's name, as rights and messages spell it."""
        return self.value.rpartition("/")[2]
