"""What a verb answers: once for machines, once for people."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
"""How every console of ours is made: names are shown as they are, whatever they hold."""

_HTML_WIDTH = 120
_HTML = '<pre style="line-height:normal;white-space:pre;overflow-x:auto">{code}</pre>'


@dataclass(frozen=True)
class Answer:
    """One answer; a verb that goes on for a while yields several."""

    data: Any
    """For machines: plain JSON. None where this answer is for people only."""
    text: RenderableType = ""
    """For people; a plain string is what a program said, and is shown as it is, line ends included."""
    exit_code: int = 0
    """What a command line ends with; 0 unless the answer is that something is not as it should be."""
    is_aside: bool = False
    """Whether it belongs on stderr: what a program said there, or words of ours beside what was asked for."""

    @property
    def html(self) -> str:
        """The text for a notebook."""
        shown = Text.from_ansi(self.text) if isinstance(self.text, str) else self.text
        console = Console(
            file=io.StringIO(), record=True, width=_HTML_WIDTH, force_jupyter=False, color_system="truecolor", **PLAIN
        )
        console.print(shown, soft_wrap=isinstance(self.text, str))
        return console.export_html(inline_styles=True, code_format=_HTML)

    def plain(self, width: int) -> str:
        """Return the text without any colour, in lines of at most so many characters where it is ours."""
        if isinstance(self.text, str):
            return self.text
        console = Console(file=io.StringIO(), width=width, force_jupyter=False, color_system=None, **PLAIN)
        with console.capture() as captured:
            console.print(self.text)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())


Answers = Answer | Iterator[Answer]
