"""The command ``jupyter gpu``: its options, its verbs, and how it ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click
from jupyter_core.paths import jupyter_runtime_dir

from jupyter_gpu import __version__
from jupyter_gpu.cli import exits
from jupyter_gpu.cli.keeper import keeper
from jupyter_gpu.cli.terminal import Terminal
from jupyter_gpu.errors import InvalidRequestError, JupyterGpuError
from jupyter_gpu.verbs import PROGRAM, VERBS, Answer, Answers, Asking, common_options

_BROKEN_PIPE = 141  # as if SIGPIPE had ended it


@click.group(PROGRAM, epilog=exits.EXPLAINED, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="jupyter-gpu %(version)s")
def gpu() -> None:
    """GPU kernels and workloads: look at them, read what they said, end them."""


gpu.params += common_options()
for _command in (*VERBS, keeper):
    gpu.add_command(_command)


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end this process."""
    sys.exit(run(sys.argv[1:] if words is None else words))


def run(words: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as this process lives
    terminal = Terminal()
    asking = Asking(busy=terminal.busy)
    as_json = "--json" in words  # where an error comes before its option is read
    try:
        with gpu.make_context(PROGRAM, list(words), obj=asking) as context:
            answers: Answers = gpu.invoke(context)
        return _show(terminal, answers, asking)
    except JupyterGpuError as error:
        if asking.debug:
            traceback.print_exc()
        terminal.fail(error.code, str(error), as_json=as_json)
        return exits.exit_code(error)
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return exits.USAGE
    except click.ClickException as error:
        if as_json:
            terminal.fail(InvalidRequestError.code, error.format_message(), as_json=True)
        else:
            error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return exits.INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - a mistake of ours: one line for the person, the rest for whoever mends it
        return _own_mistake(terminal, error, asking, as_json)


def _show(terminal: Terminal, answers: Answers, asking: Asking) -> int:
    if isinstance(answers, Answer):
        terminal.show(answers, as_json=asking.as_json, one_of_many=False)
        return answers.exit_code
    exit_code = 0
    for answer in answers:
        terminal.show(answer, as_json=asking.as_json, one_of_many=True)
        exit_code = answer.exit_code or exit_code
    return exit_code


def _own_mistake(terminal: Terminal, error: Exception, asking: Asking, as_json: bool) -> int:
    where = "run it again with --debug to see where"
    if asking.debug:
        traceback.print_exception(error)
        where = "its traceback stands above"
    else:
        path = Path(jupyter_runtime_dir()) / "jupyter-gpu-error.txt"
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text("".join(traceback.format_exception(error)))
            where = f"its traceback is in {path}"
    terminal.fail("internal", f"jupyter-gpu made a mistake: {type(error).__name__}: {error} ({where})", as_json=as_json)
    return exits.INTERNAL
