"""Which nodes have the product that is asked for, by the label that the vendor's tools put on them."""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_gpu.backends.kubernetes.attempts import Thing
from jupyter_gpu.schema import Resources, fits_product, kind_of


def fitting_nodes(resources: Resources, nodes: Iterable[Thing]) -> list[Thing]:
    """Return the nodes whose devices are of the product that is asked for; all where none is."""
    if not resources.gpus or resources.product is None:
        return list(nodes)
    return [node for node in nodes if (product := _product(resources, node)) and fits_product(resources.product, product)]


def product_values(resources: Resources, nodes: Iterable[Thing]) -> tuple[str, ...]:
    """Return the values of the product's label that nodes with this kind of device have."""
    return tuple(sorted({product for node in nodes if (product := _product(resources, node))}))


def _product(resources: Resources, node: Thing) -> str | None:
    """Return the label's value, of a node that has such devices: the label may be on others too, like a machine's type."""
    kind = kind_of(resources.accelerator.resource)
    if kind is None or kind.product_label is None or resources.accelerator.resource not in (node["status"].get("capacity") or {}):
        return None
    product: str | None = (node["metadata"].get("labels") or {}).get(kind.product_label)
    return product
