"""Kernelspecs of ours: made from profiles, found, judged, removed."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

from jupyter_gpu.config import Site
from jupyter_gpu.errors import ConflictError, InvalidRequestError, NotFoundError
from jupyter_gpu.names import object_name
from jupyter_gpu.schema import LocalSettings, Profile

PROVISIONER = "jupyter-gpu"
_PREFIX = "gpu"


@dataclass(frozen=True)
class FoundKernelspec:
    """A kernelspec of ours that is installed here."""

    name: str
    folder: Path
    display_name: str
    profile: str
    problem: str | None
    """Why its kernels can't start, and what to do about it."""


def kernelspec_name(profile: str) -> str:
    """Return the name of the kernelspec that a profile becomes: ``gpu-<profile>``, unless it begins so already."""
    return object_name(profile if profile.startswith(_PREFIX) else f"{_PREFIX}-{profile}")


def kernelspec(name: str, profile: Profile) -> dict[str, Any]:
    """Return what a profile's kernel.json holds.

    With an ``argv`` of the profile's own, nothing is assumed of what that kernel can do: say it in ``kernelspec_metadata``. Its
    interrupts are signals, which its parent passes on.
    """
    python = profile.environment.interpreter or f"python{sys.version_info[0]}"
    argv = profile.argv or (python, "-m", "ipykernel_launcher", "-f", "{connection_file}")
    abilities = {} if profile.argv else {"debugger": True, "supported_encryption": ["curve"]}
    provisioner = {"provisioner_name": PROVISIONER, "config": {"profile": name}}
    return {
        "argv": list(argv),
        "display_name": profile.display_name or name,
        "language": profile.language,
        "interrupt_mode": "signal" if profile.argv else "message",
        "metadata": {**abilities, **profile.kernelspec_metadata, "kernel_provisioner": provisioner},
    }


def check_names(profiles: Iterable[str]) -> None:
    """Refuse profiles that can't all become kernelspecs.

    Raises:
        ConflictError: two of them would become the same one.
    """
    taken: dict[str, str] = {}
    for profile in profiles:
        other = taken.setdefault(kernelspec_name(profile), profile)
        if other != profile:
            name = kernelspec_name(profile)
            raise ConflictError(
                f"the profiles {other!r} and {profile!r} would both become kernelspec {name!r}: rename one of them"
            )


def install(site: Site, profile: str, *, user: bool, prefix: str | None, replace: bool) -> tuple[Path, bool]:
    """Write a profile's kernelspec, and return its folder and whether anything changed.

    Args:
        site: has the profile.
        profile: its name.
        user: into the account's own data folder; else below ``prefix``.
        prefix: like ``sys.prefix``.
        replace: whether one of the same name with other content is written over.

    Raises:
        NotFoundError: there is no such profile.
        ConflictError: there is another kernelspec of that name.
        InvalidRequestError: it can't be written there.
    """
    name, wanted = kernelspec_name(profile), kernelspec(profile, site.profile(profile))
    manager = KernelSpecManager()
    base = Path(manager.user_kernel_dir) if user else Path(str(prefix)).absolute() / "share" / "jupyter" / "kernels"
    folder = base / name
    present = _read(folder)
    if present == wanted:
        return folder, False
    provisioner = wanted["metadata"]["kernel_provisioner"]  # the same of the present one: it was made of this profile as it was
    is_ours = present is not None and present.get("metadata", {}).get("kernel_provisioner") == provisioner
    if folder.exists() and not replace and not is_ours:
        raise ConflictError(f"there is another kernelspec {name!r} in {folder}; --replace writes over it")
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "kernel.json").write_text(json.dumps(wanted, indent=2) + "\n")
        if not site.profile(profile).argv:
            _copy_logos(Path(made))
        Path(made).chmod(0o755)  # its copy is to be read by everybody
        try:
            manager.install_kernel_spec(made, name, user=user, prefix=None if user else prefix)
        except OSError as error:
            why = error.strerror or error
            raise InvalidRequestError(f"{folder} can't be written: {why}; choose --user, --sys-prefix or --prefix") from error
    return folder, True


def found_kernelspecs(site: Site | None) -> list[FoundKernelspec]:
    """Return the kernelspecs of ours that Jupyter finds here, by name.

    Args:
        site: to judge them by; without one nothing is said of their profiles.
    """
    return sorted(_find(site), key=lambda one: one.name)


def remove(name: str) -> Path:
    """Remove a kernelspec of ours, and return the folder where it was.

    Raises:
        NotFoundError: there is none of that name, or it is not ours.
        InvalidRequestError: it can't be removed.
    """
    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
    except NoSuchKernel as error:
        ours = ", ".join(one.name for one in found_kernelspecs(None)) or "none"
        raise NotFoundError(f"there is no kernelspec {name!r}; of jupyter-gpu there are: {ours}") from error
    if not _is_ours(spec.metadata):
        raise NotFoundError(f"kernelspec {name!r} is none of jupyter-gpu; `jupyter kernelspec remove {name}` removes it")
    try:
        return Path(manager.remove_kernel_spec(name))
    except OSError as error:
        raise InvalidRequestError(
            f"kernelspec {name!r} can't be removed from {spec.resource_dir}: {error.strerror or error}"
        ) from error


def _find(site: Site | None) -> Iterator[FoundKernelspec]:
    manager = KernelSpecManager()
    for name, folder in manager.find_kernel_specs().items():
        content = _read(Path(folder))
        if content is None or not _is_ours(content.get("metadata")):
            continue
        config = content["metadata"]["kernel_provisioner"].get("config") or {}
        profile = str(config.get("profile", _PREFIX))
        problem = _problem(name, profile, content.get("argv") or [], site)
        yield FoundKernelspec(name, Path(folder), str(content.get("display_name", name)), profile, problem)


def _problem(name: str, profile: str, argv: list[str], site: Site | None) -> str | None:
    if site is None:
        return None
    if profile not in site.profiles:
        return f"its profile {profile!r} is not configured; configure it, or `jupyter gpu kernels remove {name}`"
    try:
        _, settings = site.place(site.profiles[profile].place)
    except NotFoundError as error:
        return f"the place of its profile: {error}"
    if not argv or not all(isinstance(word, str) for word in argv):
        return f"its argv {argv!r} is no command: mend it, or `jupyter gpu kernels remove {name}`"
    program = argv[0]
    if isinstance(settings, LocalSettings) and not _can_run(program):
        return f"it starts {program!r}, which is not there: make that environment again, or `jupyter gpu kernels remove {name}`"
    return None


def _can_run(program: str) -> bool:
    if program in {"python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}"}:
        return True  # the provisioner takes the Python it runs in
    return shutil.which(program) is not None


def _is_ours(metadata: Any) -> bool:
    provisioner = metadata.get("kernel_provisioner") if isinstance(metadata, dict) else None
    return isinstance(provisioner, dict) and provisioner.get("provisioner_name") == PROVISIONER


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((folder / "kernel.json").read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _copy_logos(folder: Path) -> None:
    found = find_spec("ipykernel")
    for place in found.submodule_search_locations or () if found else ():
        for logo in (Path(place) / "resources").glob("logo-*"):
            shutil.copyfile(logo, folder / logo.name)
