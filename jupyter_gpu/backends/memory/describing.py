"""What a place of virtual time tells of itself."""

from __future__ import annotations

from collections import Counter

from jupyter_gpu.backends.memory.devices import Unit
from jupyter_gpu.backends.memory.parts import NODE
from jupyter_gpu.backends.memory.runs import Story
from jupyter_gpu.backends.memory.world import World
from jupyter_gpu.queueing import queue_statuses
from jupyter_gpu.schema import Accelerator, Device, Node, Place


def describe(name: str, world: World, owner: str) -> Place:
    """Return a place as an account sees it; of others' Workloads it sees what they hold and want."""
    holders, state = world.holders(), world.state()
    free: Counter[str] = Counter(world.devices.capacity)
    free.subtract(world.devices.units[id].resource for id in holders)
    mine = {id for id, story in world.stories.items() if story.owner == owner}
    return Place(
        name=name,
        backend="memory",
        identity=owner,
        engines=("script",),
        capacity=dict(world.devices.capacity),
        free=dict(free),
        devices=tuple(_device(unit, holders.get(unit.id), owner) for unit in world.devices.units.values()),
        nodes=(Node(name=NODE, devices=dict(world.devices.capacity)),),
        queues=queue_statuses(state, mine),
        queue_set=world.queues,
        decides=True,
        stocks=tuple(state.stocks),
        claims=tuple(sorted(state.claims, key=lambda claim: (not claim.called, -claim.priority, claim.sequence))),
        holdings=tuple(state.holdings),
        time_s=state.now_s,
        notes=("time is virtual and programs are scripts: nothing runs here",),
    )


def _device(unit: Unit, story: Story | None, owner: str) -> Device:
    mine = story is not None and story.owner == owner
    return Device(
        id=unit.id,
        accelerator=Accelerator.model_validate(unit.resource),
        model=unit.model,
        emulated=True,
        holder=story.run.spec.id if story and mine else None,
        foreign=story.owner if story and not mine else None,
    )
