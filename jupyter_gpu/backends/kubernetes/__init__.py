"""A namespace of a Kubernetes cluster as a place: every Workload is a Job."""

from jupyter_gpu.backends.kubernetes.backend import KubernetesBackend

__all__ = ["KubernetesBackend"]
