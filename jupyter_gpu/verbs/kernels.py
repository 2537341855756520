"""``kernels``: profiles as kernelspecs, so that Jupyter, papermill and consoles find them."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Group
from rich.text import Text

from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.verbs import kernelspecs
from jupyter_gpu.verbs.answer import Answer
from jupyter_gpu.verbs.asking import Asking, verb
from jupyter_gpu.verbs.words import plain, table


@click.group("kernels")
def kernels() -> None:
    """Make profiles known to Jupyter as kernels."""


@verb("install")
@click.argument("profiles", metavar="[PROFILE...]", nargs=-1)
@click.option("--user", is_flag=True, help="For this account; the default outside of virtual environments.")
@click.option("--sys-prefix", is_flag=True, help="Into this Python's environment; the default in virtual ones.")
@click.option("--prefix", type=click.Path(file_okay=False), help="Into PREFIX/share/jupyter/kernels.")
@click.option("--replace", is_flag=True, help="Write over those of the same name.")
def install(asking: Asking, profiles: tuple[str, ...], user: bool, sys_prefix: bool, prefix: str | None, replace: bool) -> Answer:
    """Write a kernelspec for each PROFILE, or for all."""
    if user + sys_prefix + (prefix is not None) > 1:
        raise InvalidRequestError("choose one of --user, --sys-prefix and --prefix")
    if prefix is not None and not prefix.strip():
        raise InvalidRequestError("--prefix is empty; name the folder below which they go, or leave it out")
    if not user and prefix is None and (sys_prefix or _is_virtual()):
        prefix = sys.prefix
    names = list(dict.fromkeys(profiles or asking.site.profiles))
    for name in names:
        asking.site.profile(name)
    kernelspecs.check_names(asking.site.profiles)  # all is well before the first is written
    done = []
    for name in names:
        folder, is_new = kernelspecs.install(asking.site, name, user=prefix is None, prefix=prefix, replace=replace)
        done.append({"name": folder.name, "profile": name, "folder": str(folder), "changed": is_new})
    lines = [Text(f"{one['name']}: {'written to' if one['changed'] else 'is already in'} {one['folder']}") for one in done]
    return Answer({"kernels": done}, Group(*lines))


@verb("list")
def listing(asking: Asking) -> Answer:
    """List the kernelspecs of jupyter-gpu that Jupyter finds here."""
    found = kernelspecs.found_kernelspecs(asking.site)
    data = [
        {
            "name": one.name,
            "display_name": one.display_name,
            "profile": one.profile,
            "folder": str(one.folder),
            "problem": one.problem,
        }
        for one in found
    ]
    if not found:
        return Answer(
            {"kernels": data}, Text("no kernelspec of jupyter-gpu is installed here; `jupyter gpu kernels install` writes them")
        )
    rows = table("NAME", "SHOWN AS", "PROFILE", "STATE", "FOLDER")
    for one in found:
        state = Text(one.problem, style="red") if one.problem else Text("ok", style="green")
        rows.add_row(plain(one.name), plain(one.display_name), plain(one.profile), state, str(one.folder))
    return Answer({"kernels": data}, rows)


@verb("remove")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove(asking: Asking, names: tuple[str, ...]) -> Answer:
    """Remove kernelspecs of jupyter-gpu by their NAMEs."""
    done = [{"name": name, "folder": str(kernelspecs.remove(name))} for name in dict.fromkeys(names)]
    return Answer({"removed": done}, Group(*(Text(f"{one['name']}: removed from {one['folder']}") for one in done)))


for _command in (install, listing, remove):
    kernels.add_command(_command)


def _is_virtual() -> bool:
    return sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").is_dir()
