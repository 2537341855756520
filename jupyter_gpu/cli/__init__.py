"""The command line: ``jupyter gpu``, ``jupyter-gpu``, ``python -m jupyter_gpu``."""

from jupyter_gpu.cli.main import main

__all__ = ["main"]
