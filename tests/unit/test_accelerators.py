"""The table of accelerators, and who else must agree with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpu.replica import plugin
from jupyter_gpu.schema import Accelerator, AcceleratorKind, fits_product, kind_of
from jupyter_gpu.schema.accelerators import KINDS

_DOCS = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.vendor)
def test_every_name_in_the_table_is_an_accelerator_of_its_kind(kind: AcceleratorKind) -> None:
    for resource in kind.resources:
        name = resource.replace("*", "1g.10gb")
        assert kind_of(name) is kind
        assert Accelerator.model_validate(name).visible_variable == kind.visible_variable


def test_no_two_kinds_share_a_domain() -> None:
    domains = [domain for kind in KINDS for domain in kind.domains]
    assert len(domains) == len(set(domains))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.vendor)
def test_every_kind_has_a_source_and_doubts_only_what_it_says(kind: AcceleratorKind) -> None:
    assert kind.source
    assert set(kind.unverified) <= {"visible_variable", "plugin_variables", "product_label"}
    assert kind.product_label is not None or "product_label" not in kind.unverified


def test_a_name_of_no_known_vendor_is_no_known_kind() -> None:
    assert kind_of("example.org/thing") is None
    assert Accelerator.model_validate("example.org/thing").visible_variable == "JUPYTER_GPU_DEVICES"


def test_a_replica_reads_what_device_plugins_set() -> None:
    assert set(plugin.VARIABLES) == {variable for kind in KINDS for variable in kind.plugin_variables}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.vendor)
def test_the_docs_show_the_table(kind: AcceleratorKind) -> None:
    def cell(names: tuple[str, ...], field: str = "") -> str:
        shown = ", ".join(f"`{name}`" for name in names) or "-"
        return f"{shown} (unverified)" if field in kind.unverified else shown

    label = (kind.product_label,) if kind.product_label else ()
    cells = (
        kind.vendor,
        cell(kind.resources),
        cell((kind.visible_variable,), "visible_variable"),
        cell(kind.plugin_variables, "plugin_variables"),
        cell(label, "product_label"),
    )
    assert f"| {' | '.join(cells)} |" in _DOCS


@pytest.mark.parametrize(
    ("product", "model", "fits"),
    [
        (None, "NVIDIA H100 80GB HBM3", True),
        ("a100", "NVIDIA A100-SXM4-40GB", True),
        ("A100 SXM4", "NVIDIA A100-SXM4-40GB", True),
        ("RTX A6000", "NVIDIA-RTX-A6000", True),
        ("Instinct MI300X", "AMD_Instinct_MI300X_OAM", True),
        ("H100", "NVIDIA A100-SXM4-40GB", False),
        ("A100", "", False),
    ],
)
def test_a_product_is_part_of_the_models_name(product: str | None, model: str, fits: bool) -> None:
    assert fits_product(product, model) is fits
