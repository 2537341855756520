"""jupyter-gpu: JupyterLab as the front door of a GPU cluster.

``jupyter_gpu.connect()`` is the Python API; everything else loads on first use, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"
__all__ = ["__version__", "connect"]

if TYPE_CHECKING:
    from jupyter_gpu.connection import Gpu


def connect(place: str | None = None, **options: Any) -> "Gpu":
    """Connect to a place; see :func:`jupyter_gpu.connection.connect`."""
    from jupyter_gpu.connection import connect as connect_

    return connect_(place, **options)


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook or an IPython console the verbs of the command line: ``%load_ext jupyter_gpu``, then ``%gpu status``."""
    from jupyter_gpu.notebook.magic import register

    register(shell)
