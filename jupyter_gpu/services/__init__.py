"""Use cases over a backend. They know the contract and nothing of Jupyter, clusters or configuration."""

from jupyter_gpu.services.facade import Services

__all__ = ["Services"]
