"""What happens to a request before it is in its queue: it is checked, and written down."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_gpu.backends.base import PROTOCOL, Document
from jupyter_gpu.backends.local import processes, rows, sharing, sockets, stories, writing
from jupyter_gpu.backends.local.clock import Moment
from jupyter_gpu.backends.local.devices import Devices
from jupyter_gpu.backends.local.holdings import stocks
from jupyter_gpu.backends.local.site import Site
from jupyter_gpu.backends.local.state import StateFolder, write_whole
from jupyter_gpu.backends.sending import replica_specification
from jupyter_gpu.errors import ConflictError, InvalidRequestError, QuotaExceededError, UnsupportedError
from jupyter_gpu.queueing import check_quota
from jupyter_gpu.schema import Claim, Kind, LocalSettings, WorkloadSpec


def submit(site: Site, spec: WorkloadSpec, secrets: Mapping[str, str], moment: Moment) -> tuple[tuple[Document, ...], bool]:
    """Put a request into its queue, and return its documents and whether it is new there.

    Raises:
        InvalidRequestError, UnsupportedError, QuotaExceededError, ConflictError: as `Backend.submit` says.
    """
    row = rows.find(site.store, spec.id)
    if _is_there(row, spec):
        return _documents(site, spec, row, secrets), False
    check(site, spec, secrets)
    with site.store.transaction() as connection:
        row = rows.find(site.store, spec.id)  # another process may have been quicker
        if _is_there(row, spec):
            return _documents(site, spec, row, secrets), False
        attempt = row.attempt + 1 if row else 1
        replica = specification(spec, attempt, site.settings, site.state)
        _write(site, spec, attempt, secrets, replica)
        stories.replace(connection, spec.id)
        writing.insert(connection, spec, attempt, moment)
    return documents(spec, attempt, secrets, replica), True


def preview(site: Site, spec: WorkloadSpec, secrets: Mapping[str, str]) -> tuple[Document, ...]:
    """Check a request like `submit`, and return the documents that it would write."""
    row = rows.find(site.store, spec.id)
    if not _is_there(row, spec):
        check(site, spec, secrets)
    return _documents(site, spec, row, secrets)


def check(site: Site, spec: WorkloadSpec, secrets: Mapping[str, str]) -> None:
    """Refuse what could never run on this machine.

    Raises:
        InvalidRequestError, UnsupportedError, QuotaExceededError: as the text says.
    """
    place = site.name
    if spec.environment.image:
        raise InvalidRequestError(
            f"{place} runs no containers, so it can't use the image {spec.environment.image!r}: leave it out"
        )
    if missing := sorted(set(spec.secrets) - set(secrets)):
        raise InvalidRequestError(f"{spec.id!r} names the secrets {', '.join(missing)}, which did not come with it")
    variables = program_variables(spec, site.settings)
    if interpreter := spec.environment.interpreter:
        _find(interpreter, "interpreter", variables, spec)
    _find(spec.command[0], "command", variables, spec)
    sockets.socket_folder(site.state.path, spec.id, 1)  # nothing could be started without
    found = site.devices() if spec.resources.gpus else Devices()
    check_size(place, spec, found)
    check_quota(Claim.of(spec, 0), sharing.queue_set(site.store), stocks(found, {}), place)
    if spec.replicas > 1:
        raise UnsupportedError(f"{place} runs one replica of a workload: more than one replica comes with training")


def check_size(place: str, spec: WorkloadSpec, found: Devices) -> None:
    """Refuse what asks for more devices than there are.

    Raises:
        QuotaExceededError: waiting can't help.
    """
    resources = spec.resources
    asked, kind = resources.gpus * spec.replicas, resources.accelerator.resource
    limit = found.capacity.get(kind, 0)
    if asked <= limit:
        return
    others = ", ".join(f"{count} {name}" for name, count in sorted(found.capacity.items()) if name != kind)
    if limit:
        advice = ""
    elif others:
        advice = f"ask for what is there: {others}"
    else:
        advice = "; ".join((*found.notes, "to try things out, set 'emulated_gpus' of this place in jupyter_gpu_config"))
    raise QuotaExceededError(place, kind, asked=asked, limit=limit, advice=advice)


def program_variables(spec: WorkloadSpec, settings: LocalSettings) -> dict[str, str]:
    """Return the program's environment as far as it comes from here: what may pass of ours, and what the spec says."""
    passes = _pattern(settings.passed_variables).fullmatch
    passed = {name: value for name, value in os.environ.items() if passes(name)}
    return {**passed, **spec.environment.variables}


def specification(spec: WorkloadSpec, attempt: int, settings: LocalSettings, state: StateFolder) -> dict[str, Any]:
    """Return the runner's specification, but for what is known only when it starts: devices, real ports, folders."""
    variables = program_variables(spec, settings)
    plain = replica_specification(spec, attempt=attempt, rank=0, clean=True, memory_limits=settings.memory_limits)
    cwd = _home(variables) / Path(spec.environment.working_directory or "").expanduser()
    marked = {**variables, **processes.markers(state, spec.id, attempt)}
    return {**plain, "variables": marked, "cwd": str(cwd), "memory_limits": settings.memory_limits}


def documents(spec: WorkloadSpec, attempt: int, secrets: Mapping[str, str], replica: Mapping[str, Any]) -> tuple[Document, ...]:
    """Return what is written for an attempt, without the values of secrets."""
    workload = {"document": "workload", "protocol": PROTOCOL, "attempt": attempt, "spec": spec.model_dump(mode="json")}
    secret = {"document": "secret", "protocol": PROTOCOL, "id": spec.id, "names": sorted(secrets)}
    return (workload, {"document": "replica", **replica}, *([secret] if secrets else []))


def _is_there(row: rows.Row | None, spec: WorkloadSpec) -> bool:
    """Return whether a request is for what runs or waits already."""
    if row is None:
        return False
    if row.owner != spec.owner:
        raise ConflictError(f"{spec.id!r} belongs to {row.owner}; choose another id")
    if row.is_final:
        return False
    if spec.content_hash() not in (row.content, rows.read(WorkloadSpec, row.spec).content_hash()):
        raise ConflictError(f"{spec.id!r} is {row.phase} with other content; cancel it first, or choose another id")
    return True


def _documents(site: Site, spec: WorkloadSpec, row: rows.Row | None, secrets: Mapping[str, str]) -> tuple[Document, ...]:
    attempt = 1 if row is None else row.attempt + 1 if row.is_final else row.attempt
    return documents(spec, attempt, secrets, specification(spec, attempt, site.settings, site.state))


def _write(site: Site, spec: WorkloadSpec, attempt: int, secrets: Mapping[str, str], replica: Mapping[str, Any]) -> None:
    """Write an attempt's folder; within the transaction of its row, so that no folder is ever taken for a leftover."""
    folder = site.state.attempt(spec.id, attempt)
    shutil.rmtree(folder.path, ignore_errors=True)  # of a submit that was killed half-way
    for path in (site.state.workloads, folder.path.parent, folder.path):
        path.mkdir(mode=0o700, exist_ok=True)
    kept = dict(replica)
    if secrets or spec.kind is Kind.KERNEL:
        write_whole(folder.secrets, secrets)
        kept["secrets"] = str(folder.secrets)
    write_whole(folder.replica, kept)


@functools.cache
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, globs)) or "(?!)")


def _home(variables: Mapping[str, str]) -> Path:
    return Path(variables.get("HOME") or Path.home())


def _find(program: str, what: str, variables: Mapping[str, str], spec: WorkloadSpec) -> None:
    folder = _home(variables) / Path(spec.environment.working_directory or "").expanduser()
    path = variables.get("PATH", os.defpath)
    is_path = os.sep in program
    if shutil.which(str(folder / program) if is_path else program, path=path) is None:
        where = "" if is_path else f" on PATH ({path})"
        raise InvalidRequestError(
            f"the {what} {program!r} of {spec.id!r} is not there or can't be executed{where}: install it, or give its full path"
        )
