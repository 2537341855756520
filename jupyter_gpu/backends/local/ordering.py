"""Give a Workload another place in line."""

from __future__ import annotations

from pydantic import ValidationError

from jupyter_gpu.backends.local import rows, writing
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.errors import ConflictError, InvalidRequestError
from jupyter_gpu.schema import Phase, WorkloadSpec


def reprioritise(site: Site, id: str, priority: int) -> None:
    """Give a Workload another priority. The request that it came from stays the same: to submit that again is no conflict.

    Raises:
        NotFoundError: no such Workload.
        ConflictError: it has ended.
        InvalidRequestError: no priority is so large.
    """
    with site.store.transaction() as connection:
        row = rows.get(site.store, id, site.name)
        if row.is_final:
            raise ConflictError(f"{id!r} has ended ({row.phase}), so its priority can't be changed")
        spec = rows.read(WorkloadSpec, row.spec).model_dump()
        try:
            spec_now = WorkloadSpec.model_validate({**spec, "priority": priority})
        except ValidationError as error:
            raise InvalidRequestError(f"{priority} is no priority: {error.errors()[0]['msg']}") from error
        living = (Phase.QUEUED, Phase.STARTING, Phase.RUNNING)
        writing.change(connection, id, row.attempt, *living, priority=priority, spec=spec_now.model_dump_json())
