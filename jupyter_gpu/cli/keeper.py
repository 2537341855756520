"""``keeper``: act for a place while nobody looks. A local place starts it by itself, detached, while something waits there."""

from __future__ import annotations

import anyio
import click
from pydantic import TypeAdapter, ValidationError
from rich.text import Text

from jupyter_gpu.connection import make_backend
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import PlaceSettings
from jupyter_gpu.schema.explaining import explain
from jupyter_gpu.services.keeping import keep
from jupyter_gpu.verbs import Answer, Asking, verb


@verb("keeper")
@click.option("--name", hidden=True, help="The place's name, with --settings.")
@click.option("--settings", hidden=True, help="The place's settings as JSON, instead of the configuration's.")
def keeper(asking: Asking, name: str | None, settings: str | None) -> Answer:
    """Act for a place until nothing is left to do there.

    It starts what fits, ends what nobody waits for any more or can't start, and removes leftovers and stories past their time. A
    local place needs nobody to call it; in a cluster, whoever waits for a kernel does the same.
    """
    if settings is None:
        name, checked = asking.site.place(asking.place)
    else:
        try:
            checked = TypeAdapter[PlaceSettings](PlaceSettings).validate_json(settings)
        except ValidationError as error:
            raise InvalidRequestError(f"--settings: {explain(error, 'settings', PlaceSettings)}") from error
    place = name or "local"

    async def run() -> bool:
        async with make_backend(place, checked) as backend:
            return await keep(backend)

    kept = anyio.run(run)
    return Answer({"kept": kept}, Text(f"nothing is left to do in {place}" if kept else f"{place} has a Keeper already"))
