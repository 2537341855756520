"""What a site may set: places and profiles, in `jupyter_gpu_config.py` or `.json` on Jupyter's configuration path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_config_path
from pydantic import Field, ValidationError
from traitlets import Dict, Unicode
from traitlets.config import Config, Configurable
from traitlets.config.loader import JSONFileConfigLoader, LazyConfigValue, PyFileConfigLoader

from jupyter_gpu.errors import InvalidRequestError, NotFoundError
from jupyter_gpu.schema import LocalSettings, MiB, PlaceSettings, Profile, Resources, Schema
from jupyter_gpu.schema.explaining import explain

CONFIG_NAME = "jupyter_gpu_config"
DEFAULT_PLACES = {"local": {"backend": "local"}}
DEFAULT_PROFILES: dict[str, dict[str, Any]] = {"gpu": {"display_name": "Python 3 (GPU)", "resources": {"gpus": 1}}}
_SHARE_OF_MEMORY = 0.9


class JupyterGpu(Configurable):
    """The section ``c.JupyterGpu`` of a configuration file."""

    places = Dict(
        default_value=DEFAULT_PLACES,
        config=True,
        help="Where workloads may run, by name: {'backend': 'local' | 'kubernetes', ...its settings}.",
    )
    profiles = Dict(
        default_value=DEFAULT_PROFILES, config=True, help="What a user may choose, by name; each becomes a kernelspec."
    )
    default_place = Unicode(
        "", config=True, help="The place that commands mean when they name none; 'local' or the first one when empty."
    )


class Site(Schema):
    """A site's places and profiles, checked."""

    places: dict[str, PlaceSettings] = Field({"local": LocalSettings()}, min_length=1)
    profiles: dict[str, Profile] = Field({"gpu": Profile(resources=Resources(gpus=1))})
    default_place: str = ""

    def place(self, name: str | None = None) -> tuple[str, PlaceSettings]:
        """Return a place's name and settings; without a name, the default place's.

        Raises:
            NotFoundError: there is no such place.
        """
        if self.default_place and self.default_place not in self.places:
            known = ", ".join(self.places)
            raise InvalidRequestError(
                f"JupyterGpu.default_place is {self.default_place!r}, which is no place; there are: {known}"
            )
        name = name or self.default_place or ("local" if "local" in self.places else next(iter(self.places)))
        if name not in self.places:
            raise NotFoundError(f"there is no place {name!r} in the configuration; there are: {', '.join(self.places)}")
        return name, self.places[name]

    def profile(self, name: str) -> Profile:
        """Return a profile.

        Raises:
            NotFoundError: there is no such profile.
        """
        if name not in self.profiles:
            known = ", ".join(self.profiles) or "none"
            raise NotFoundError(f"there is no profile {name!r} in the configuration; there are: {known}")
        return self.profiles[name]


def load_site(extra: Config | None = None) -> Site:
    """Return the site as configured: files in the order of Jupyter's configuration path, then ``extra`` (an application's own).

    Raises:
        InvalidRequestError: a file can't be read or a value is wrong; the message names the file and the value.
    """
    config, files = _read_files()
    if extra is not None:
        _refuse_other_spellings(extra, "the application's configuration")
        config.merge(Config({"JupyterGpu": extra["JupyterGpu"]}) if "JupyterGpu" in extra else Config())
    where = " or ".join(str(file) for file in files) or "the configuration"
    _refuse_other_spellings(config, where)
    section = config.get("JupyterGpu", Config())
    unknown = set(section) - set(JupyterGpu.class_trait_names(config=True))
    if unknown:
        known = ", ".join(sorted(JupyterGpu.class_trait_names(config=True)))
        raise InvalidRequestError(f"{where}: JupyterGpu has no setting {sorted(unknown)[0]!r}; it has {known}")
    places = _value(section, "places", DEFAULT_PLACES)
    values: dict[str, Any] = {"places": places, "profiles": _value(section, "profiles", _default_profiles(places))}
    values |= {name: section[name] for name in section if name not in values}
    given = _plain(values)
    try:
        return Site.model_validate(given)
    except ValidationError as error:
        raise InvalidRequestError(f"{where}: {explain(error, 'JupyterGpu', Site, given)}") from error


def _value(section: Config, name: str, default: dict[str, Any]) -> Any:
    value = section.get(name, default)
    # lazy: c.JupyterGpu.profiles.update(...), which adds to the default
    return value.get_value(dict(default)) if isinstance(value, LazyConfigValue) else value


def _default_profiles(places: Any) -> dict[str, Any]:
    """Return the built-in profile. On this machine it has most of the memory: nobody chose a limit that could end a kernel."""
    local = _plain(places).get("local") if isinstance(places, dict) else None
    if not isinstance(local, dict) or local.get("backend") != "local":
        return DEFAULT_PROFILES
    memory = max(int(_machine_bytes() * _SHARE_OF_MEMORY) // MiB, 1) * MiB
    return {name: {**one, "resources": {"memory_bytes": memory, **one["resources"]}} for name, one in DEFAULT_PROFILES.items()}


def _machine_bytes() -> int:
    """Return the memory of this machine, or of the container that it is for us."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return machine


def _refuse_other_spellings(config: Config, where: str) -> None:
    section = JupyterGpu.__name__
    for name in config:
        if name != section and name.replace("_", "").casefold() == section.casefold():
            raise InvalidRequestError(f"{where}: the section {name!r} would be ignored; it is written c.{section}")


def _read_files() -> tuple[Config, list[Path]]:
    config, files = Config(), []
    for folder in reversed(jupyter_config_path()):
        for suffix, loader in ((".json", JSONFileConfigLoader), (".py", PyFileConfigLoader)):
            path = Path(folder) / (CONFIG_NAME + suffix)
            if not path.is_file():
                continue
            files.append(path)
            try:
                config.merge(loader(path.name, path=folder).load_config())
            except (Exception, SystemExit) as error:
                raise InvalidRequestError(f"{path} can't be read: {type(error).__name__}: {error}") from error
    return config, files


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
