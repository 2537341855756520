"""``keeper``: what a local place starts, detached, while something waits there."""

from __future__ import annotations

import anyio
import click
from pydantic import TypeAdapter, ValidationError

from jupyter_gpu.config import explain
from jupyter_gpu.connection import make_backend
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.schema import PlaceSettings
from jupyter_gpu.services.keeping import keep
from jupyter_gpu.verbs import Answer


@click.command("keeper", hidden=True)
@click.option("--name", required=True, help="The place's name.")
@click.option("--settings", required=True, help="The place's settings, as JSON.")
def keeper(name: str, settings: str) -> Answer:
    """Be the Keeper of a place until nothing waits there."""
    try:
        checked: PlaceSettings = TypeAdapter(PlaceSettings).validate_json(settings)
    except ValidationError as error:
        raise InvalidRequestError(f"--settings: {explain(error, 'settings')}") from error

    async def run() -> bool:
        async with make_backend(name, checked) as backend:
            return await keep(backend)

    return Answer({"kept": anyio.run(run)})
