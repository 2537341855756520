"""``%gpu``: the verbs of the command line in a notebook or an IPython console."""

from __future__ import annotations

import shlex
from typing import Any

import click

from jupyter_gpu.errors import InvalidRequestError, JupyterGpuError
from jupyter_gpu.notebook.page import Page
from jupyter_gpu.verbs import PROGRAM, VERBS, Answer, Answers, Asking, common_options

_MAGIC = "%gpu"


@click.group(_MAGIC, context_settings={"help_option_names": ["-h", "--help"]})
def gpu() -> None:
    """Ask about GPU kernels and workloads: %gpu status. With --json the answer is a value: place = %gpu status --json."""


gpu.params += common_options()
for _command in VERBS:
    gpu.add_command(_command)


def register(shell: Any) -> None:
    """Make ``%gpu`` known to an IPython shell."""
    is_notebook = hasattr(shell, "kernel")

    def magic(line: str) -> Any:
        """Ask about GPU kernels and workloads; %gpu --help lists the verbs."""
        return run(line, Page(is_notebook=is_notebook))

    shell.register_magic_function(magic, "line", _MAGIC.removeprefix("%"))


def run(line: str, page: Page) -> Any:
    """Run one line: show what it answers, or with ``--json`` return it.

    Raises:
        JupyterGpuError: what was asked for can't be, or the answer is no; shown as one line, and the cell ends there.
        KeyboardInterrupt: it was interrupted; the same.
    """
    asking = Asking(busy=page.busy, program=_MAGIC)
    failed: BaseException
    try:
        with gpu.make_context(_MAGIC, _words(line), obj=asking) as context:
            answers: Answers = gpu.invoke(context)
        return _show(answers, asking, page)
    except click.exceptions.Exit:  # --help
        return None
    except click.exceptions.NoArgsIsHelpError as error:
        page.show(Answer(None, error.format_message() + "\n"))
        return None
    except click.ClickException as error:
        failed = InvalidRequestError(error.format_message())
    except JupyterGpuError as error:
        failed = error
    except (KeyboardInterrupt, click.Abort):
        failed = KeyboardInterrupt("interrupted")
    raise _in_one_line(failed, asking)  # out here it drags along no frame that would keep a stream open


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise click.UsageError(f"{line!r} can't be read: {error}") from error


def _show(answers: Answers, asking: Asking, page: Page) -> Any:
    several = [answers] if isinstance(answers, Answer) else answers
    values = []
    for answer in several:
        if not asking.as_json:
            page.show(answer)
        elif answer.data is not None:
            values.append(answer.data)
    if asking.as_json:
        return values[0] if isinstance(answers, Answer) else values
    return None


def _in_one_line(error: BaseException, asking: Asking) -> BaseException:
    """Return an error that IPython shows as one line instead of a traceback, unless that was asked for."""
    if not asking.debug:
        words = str(error).replace(f"`{PROGRAM} ", f"`{_MAGIC} ")
        error.__cause__ = error.__context__ = None  # of a group among them IPython would print all
        error._render_traceback_ = lambda: [f"{type(error).__name__}: {words}"]  # type: ignore[attr-defined]
    return error
