"""How answers reach a notebook's page, or the console of a kernel or of plain IPython."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.display import DisplayHandle, display
from rich.text import Text

from jupyter_gpu.verbs import Answer
from jupyter_gpu.verbs.lasting import once_it_lasts

_PAGE_WIDTH = 120


class Page:
    """One cell's output: an answer is HTML and text at once, what programs said is printed.

    What it says of work in progress is taken back, so that a notebook that is opened later holds answers only.
    """

    def __init__(self, *, is_notebook: bool) -> None:
        self._width = _PAGE_WIDTH if is_notebook else shutil.get_terminal_size((_PAGE_WIDTH, 24)).columns
        self._is_notebook = is_notebook

    def show(self, answer: Answer) -> None:
        """Show an answer."""
        if isinstance(answer.text, str):
            print(answer.text, end="", file=sys.stderr if answer.is_aside else sys.stdout, flush=True)
        else:
            display(self._bundle(answer), raw=True)  # type: ignore[no-untyped-call]

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Say on a notebook's page that something goes on, once it has taken a moment, and take it back afterwards."""
        if not self._is_notebook:
            yield
            return
        said: list[DisplayHandle] = []
        try:
            with once_it_lasts(lambda: said.append(self._say(words))):
                yield
        finally:
            for handle in said:  # where a console can't take it back, it stays
                handle.update({"text/plain": "", "text/html": ""}, raw=True)  # type: ignore[no-untyped-call]

    def _say(self, words: str) -> DisplayHandle:
        bundle = self._bundle(Answer(None, Text(f"{words}...", style="dim")))
        handle: DisplayHandle = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        return handle

    def _bundle(self, answer: Answer) -> dict[str, Any]:
        return {"text/plain": answer.plain(self._width), "text/html": answer.html}
