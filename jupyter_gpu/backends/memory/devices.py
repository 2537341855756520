"""The devices of a place of virtual time: which there are, and which somebody has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from jupyter_gpu.schema import NVIDIA_GPU, Stock

EMULATED = "emulated"


@dataclass(frozen=True)
class Unit:
    """One device."""

    id: str
    resource: str
    model: str


class Devices:
    """All devices.

    Args:
        gpus: how many of each resource name; of a model that is called emulated.
        models: how many nvidia.com/gpu of each model, beside those of ``gpus``.
    """

    def __init__(self, gpus: Mapping[str, int], models: Mapping[str, int]) -> None:
        kinds = [(resource, EMULATED, count) for resource, count in gpus.items()]
        kinds += [(NVIDIA_GPU.resource, model, count) for model, count in models.items()]
        self.capacity: Counter[str] = Counter()
        self.units: dict[str, Unit] = {}
        for resource, model, count in kinds:
            for _ in range(count):
                id = f"{resource}-{self.capacity[resource]}"
                self.units[id] = Unit(id, resource, model)
                self.capacity[resource] += 1
            self.capacity[resource] += 0  # so that a kind is known of which there is none

    def stocks(self, held: Iterable[str]) -> tuple[Stock, ...]:
        """Return how many there are and how many are free, where those of these ids are held."""
        taken = Counter((self.units[id].resource, self.units[id].model) for id in held)
        kinds = Counter((unit.resource, unit.model) for unit in self.units.values())
        return tuple(Stock(*kind, capacity=count, free=count - taken[kind]) for kind, count in kinds.items())

    def models(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the models of some devices, counted."""
        return dict(Counter(self.units[id].model for id in ids))

    def choose(self, resource: str, models: Mapping[str, int], held: Iterable[str]) -> list[str]:
        """Return the ids of so many devices of each model, of those that nobody holds."""
        taken = set(held)
        ids: list[str] = []
        for model, count in models.items():
            free = (id for id, unit in self.units.items() if id not in taken and (unit.resource, unit.model) == (resource, model))
            ids += islice(free, count)
        return ids
