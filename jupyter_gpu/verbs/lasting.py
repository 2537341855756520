"""Say that something goes on, but only once it has taken a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AFTER_S = 0.8


@contextmanager
def once_it_lasts(say: Callable[[], object]) -> Iterator[None]:
    """Call ``say``, in a thread, if the context is still open after a moment; it has returned before the context is left."""
    timer = threading.Timer(_AFTER_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
