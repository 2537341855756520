"""How answers reach a terminal, a pipe or a file."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console

from jupyter_gpu.verbs import PLAIN, Answer
from jupyter_gpu.verbs.lasting import once_it_lasts
from jupyter_gpu.verbs.words import paragraph

_PIPE_WIDTH = 10_000  # nothing is cut or folded where no screen is


class Terminal:
    """stdout for what was asked for, stderr for everything else; colours only on a terminal, and not with NO_COLOR."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        self.errors = _console(sys.stderr)
        self._output = _console(sys.stdout)

    def show(self, answer: Answer, *, as_json: bool, one_of_many: bool) -> None:
        """Show an answer; of several each is a line of JSON."""
        if as_json:
            if answer.data is not None:
                _write(sys.stdout, json.dumps(answer.data, indent=None if one_of_many else 2) + "\n")
            return
        stream, console = (sys.stderr, self.errors) if answer.is_aside else (sys.stdout, self._output)
        if isinstance(answer.text, str):
            _write(stream, answer.text)
        elif console.is_terminal:
            console.print(answer.text)
        else:
            with console.capture() as captured:
                console.print(answer.text)
            _write(stream, "".join(line.rstrip() + "\n" for line in captured.get().splitlines()))

    def fail(self, code: str, message: str, *, as_json: bool) -> None:
        """Say what went wrong: one line on stderr, or an object on stdout."""
        if as_json:
            _write(sys.stdout, json.dumps({"error": {"code": code, "message": message}}, indent=2) + "\n")
        else:
            _write(sys.stderr, f"Error: {paragraph(message)}\n")

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Show on a terminal that something goes on, once it has taken a moment."""
        if not self.errors.is_terminal:
            yield
            return
        status = self.errors.status(f"{words}...")
        try:
            with once_it_lasts(status.start):
                yield
        finally:
            status.stop()


def _console(stream: TextIO) -> Console:
    settings: dict[str, Any] = {} if stream.isatty() else {"width": _PIPE_WIDTH}
    return Console(file=stream, force_jupyter=False, **PLAIN, **settings)


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
