"""What a site sets, and what it is told when that is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from traitlets.config import Config

from jupyter_gpu.config import load_site
from jupyter_gpu.errors import InvalidRequestError, NotFoundError
from jupyter_gpu.schema import KubernetesSettings, LocalSettings, Resources
from tests.homes import Home


@pytest.fixture
def empty(home: Home) -> Home:
    """A home without a configuration file."""
    (home.folder / "config" / "jupyter_gpu_config.json").unlink()
    return home


def test_without_a_file_there_is_a_local_place_and_one_profile(empty: Home) -> None:
    site = load_site()
    assert site.place() == ("local", LocalSettings())
    assert site.profile("gpu").resources.gpus == 1


def test_the_built_in_profile_has_most_of_the_machines_memory(empty: Home) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < load_site().profile("gpu").resources.memory_bytes < machine
    empty.write_config("c.JupyterGpu.profiles = {'gpu': {'resources': {'gpus': 1}}}", ".py")
    assert load_site().profile("gpu").resources == Resources(gpus=1)  # what a site configures is meant


def test_python_and_json_mean_the_same(empty: Home) -> None:
    section = {
        "places": {"lab": {"backend": "kubernetes", "namespace": "ml"}},
        "profiles": {"a": {"place": "lab", "environment": {"image": "x:1"}}},
    }
    path = empty.write_config(json.dumps({"JupyterGpu": section}), ".json")
    of_json = load_site()
    path.unlink()
    empty.write_config(f"c.JupyterGpu.places = {section['places']!r}\nc.JupyterGpu.profiles = {section['profiles']!r}\n", ".py")
    assert load_site() == of_json
    assert of_json.place() == ("lab", KubernetesSettings(namespace="ml"))


def test_a_nearer_file_wins_setting_by_setting(empty: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty.write_config('c.JupyterGpu.default_place = "b"\nc.JupyterGpu.places = {"a": {"backend": "local"}}', ".py")
    near = tmp_path / "near"
    near.mkdir()
    (near / "jupyter_gpu_config.json").write_text('{"JupyterGpu": {"places": {"b": {"backend": "local", "emulated_gpus": 4}}}}')
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(near))
    assert load_site().place() == ("b", LocalSettings(emulated_gpus=4))
    assert set(load_site().places) == {"b"}


def test_an_applications_own_configuration_comes_last(empty: Home) -> None:
    empty.write_config('c.JupyterGpu.default_place = "a"', ".py")
    extra = Config({"JupyterGpu": {"places": {"z": {"backend": "local"}}, "default_place": "z"}, "ServerApp": {"port": 1}})
    assert load_site(extra).place()[0] == "z"


def test_a_section_that_an_application_misspells_is_named(empty: Home) -> None:
    with pytest.raises(InvalidRequestError, match="the section 'JupyterGPU' would be ignored"):
        load_site(Config({"JupyterGPU": {"default_place": "z"}}))


def test_the_default_place_is_local_or_the_first(home: Home) -> None:
    home.configure(places={"b": {"backend": "kubernetes"}, "local": home.local})
    assert load_site().place()[0] == "local"
    home.configure(places={"b": {"backend": "kubernetes"}, "a": home.local})
    assert load_site().place()[0] == "b"
    home.configure(places={"b": {"backend": "kubernetes"}, "a": home.local}, default_place="a")
    assert load_site().place()[0] == "a"


def test_an_unknown_place_or_profile_is_answered_by_those_there_are(home: Home) -> None:
    home.configure(profiles={"small": {}, "large": {}})
    with pytest.raises(NotFoundError, match="no place 'moon' in the configuration; there are: local"):
        load_site().place("moon")
    with pytest.raises(NotFoundError, match="no profile 'tpu' in the configuration; there are: small, large"):
        load_site().profile("tpu")


@pytest.mark.parametrize(
    ("suffix", "text", "says"),
    [
        (".json", '{"JupyterGpu": {', "JSONDecodeError"),
        (".py", "x = (", "SyntaxError"),
        (".py", 'raise ValueError("boo")', "ValueError: boo"),
        (".py", "c.JupyterGpu.plces = {}", "JupyterGpu has no setting 'plces'; it has default_place, places, profiles"),
        (".py", "c.JupyterGpu.places = 3", "JupyterGpu.places: must be a mapping of names to values (given: 3)"),
        (
            ".py",
            'c.JupyterGpu.places = {"a": {"backend": "slurm"}}',
            "JupyterGpu.places.a: 'backend' can't be 'slurm'; it is one of 'local', 'kubernetes'",
        ),
        (".py", 'c.JupyterGpu.places = {"a": {}}', "JupyterGpu.places.a: 'backend' is missing"),
        (".py", 'c.JupyterGpu.places = {"a": {"backend": "local", "poll": 1}}', "JupyterGpu.places.a.poll: there is no such"),
        (".py", "c.JupyterGPU.places = {}", "the section 'JupyterGPU' would be ignored; it is written c.JupyterGpu"),
        (".json", '{"jupyter_gpu": {}}', "the section 'jupyter_gpu' would be ignored; it is written c.JupyterGpu"),
        (".py", 'c.JupyterGpu.places = {"a": {"backend": "local", "emulated_gpus": -1}}', "emulated_gpus"),
        (".py", 'c.JupyterGpu.profiles = {"a": {"resources": {"gpus": 1.5}}}', "profiles.a.resources.gpus"),
        (
            ".py",
            'c.JupyterGpu.profiles = {"a": {"resources": {"memory_bytes": "4XB"}}}',
            "'4XB' is no size in bytes; write it like 512MiB",
        ),
        (".py", 'c.JupyterGpu.profiles = {"a": {"resources": {"accelerator": "gpu"}}}', "it is named like nvidia.com/gpu"),
        (
            ".py",
            'c.JupyterGpu.profiles = {"a": {"gpus": 1}}',
            "JupyterGpu.profiles.a.gpus: there is no such setting; there are display_name, place",
        ),
    ],
)
def test_a_broken_file_is_named_with_the_value(empty: Home, suffix: str, text: str, says: str) -> None:
    path = empty.write_config(text, suffix)
    with pytest.raises(InvalidRequestError) as caught:
        load_site()
    assert str(path) in str(caught.value) and says in str(caught.value)
