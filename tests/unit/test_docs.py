"""What the docs say is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from jupyter_gpu.cli import exits
from jupyter_gpu.config import JupyterGpu, load_site
from jupyter_gpu.schema import Bounds, Environment, KubernetesSettings, LocalSettings, Profile, Resources
from jupyter_gpu.verbs import VERBS
from tests.homes import Home

_ROOT = Path(__file__).parents[2]
_CLI = (_ROOT / "docs" / "cli.md").read_text()
_CONFIGURATION = (_ROOT / "docs" / "configuration.md").read_text()


def _commands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        return [found for part in command.commands.values() for found in _commands(part, f"{name} {part.name}")]
    return [(name, command)]


@pytest.mark.parametrize(
    ("name", "command"), [found for verb in VERBS for found in _commands(verb, str(verb.name))], ids=lambda value: str(value)
)
def test_every_verb_is_described_with_its_options(name: str, command: click.Command) -> None:
    assert f"`{name}" in _CLI
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.opts[0] in _CLI


def test_every_exit_code_is_described() -> None:
    codes = re.findall(r"^ +(\d+) ", exits.EXPLAINED, re.MULTILINE)
    assert codes == re.findall(r"^\| (\d+) \|", _CLI, re.MULTILINE)


@pytest.mark.parametrize("schema", [LocalSettings, KubernetesSettings, Profile, Bounds, Environment, Resources])
def test_every_setting_is_described(schema: type[Profile]) -> None:
    for name in schema.model_fields:
        assert f"`{name}`" in _CONFIGURATION
    for name in JupyterGpu.class_trait_names(config=True):
        assert f"`{name}`" in _CONFIGURATION


@pytest.mark.parametrize("path", ["README.md", "docs/configuration.md"])
def test_the_configurations_that_are_shown_can_be_read(home: Home, path: str) -> None:
    (home.folder / "config" / "jupyter_gpu_config.json").unlink()
    blocks = re.findall(r"```python\n(c\.JupyterGpu.*?)```", (_ROOT / path).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        home.write_config(block, ".py")
        site = load_site()
        assert {profile.place for profile in site.profiles.values()} <= set(site.places)


def test_every_reason_is_described_and_no_other() -> None:
    sources = "".join(path.read_text() for path in (_ROOT / "jupyter_gpu").rglob("*.py"))
    given = set(re.findall(r'"((?:queue|start|run|end)\.[a-z_]+)"', sources)) - {"end.json"}  # a file
    assert set(re.findall(r"^\| `([a-z_.]+)`", (_ROOT / "docs" / "reasons.md").read_text(), re.MULTILINE)) == given


def test_links_between_our_files_lead_somewhere() -> None:
    for page in [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *(_ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
