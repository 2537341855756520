"""Who asks, and about which place: what every verb is told beside its own arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Concatenate, ParamSpec

import click

from jupyter_gpu.config import Site, load_site
from jupyter_gpu.connection import Gpu, connect
from jupyter_gpu.verbs.answer import Answers

P = ParamSpec("P")
PROGRAM = "jupyter gpu"


class Asking:
    """The place that is asked about, opened on first use.

    Args:
        place: its name; the default place's when absent.
        site: the configuration; read from the files when absent.
        busy: tells the person what goes on while its context is open.
        program: what a person types before a verb here.
    """

    def __init__(
        self,
        place: str | None = None,
        *,
        site: Site | None = None,
        busy: Callable[[str], AbstractContextManager[None]] = lambda words: nullcontext(),
        program: str = PROGRAM,
    ) -> None:
        self.place, self.busy, self.program = place, busy, program
        self.as_json = self.debug = False
        self._site = site

    @cached_property
    def site(self) -> Site:
        """The configuration.

        Raises:
            InvalidRequestError: it is wrong; the message says where.
        """
        return self._site or load_site()

    @cached_property
    def gpu(self) -> Gpu:
        """The place.

        Raises:
            NotFoundError: the configuration has no such place.
        """
        return connect(self.place, site=self.site)


def verb(name: str, **attributes: Any) -> Callable[[Callable[Concatenate[Asking, P], Answers]], click.Command]:
    """Make a function a verb: a click command with the options that all verbs have; the function gets the `Asking` first."""

    def decorate(function: Callable[Concatenate[Asking, P], Answers]) -> click.Command:
        @functools.wraps(function)  # with the parameters that click's decorators left on it
        def call(*args: P.args, **kwargs: P.kwargs) -> Answers:
            return function(click.get_current_context().ensure_object(Asking), *args, **kwargs)

        command = click.command(name, cls=click.Command, **attributes)(call)
        command.params += common_options()
        return command

    return decorate


def common_options() -> list[click.Option]:
    """Return the options that may stand before and after every verb."""
    return [
        _option("place", metavar="NAME", help="The place of the configuration that is meant; else its default place."),
        _option("json", "as_json", is_flag=True, help="Answer as JSON."),
        _option("debug", is_flag=True, help="Show the traceback of an error."),
    ]


def _option(flag: str, attribute: str | None = None, **attributes: Any) -> click.Option:
    def tell(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.find_object(Asking), attribute or flag, value)

    return click.Option([f"--{flag}"], expose_value=False, is_eager=True, callback=tell, **attributes)
