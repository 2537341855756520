"""What a client may wish for, by dice: batch runs of a second that end in all ways, and kernels."""

from __future__ import annotations

import random
import sys

from jupyter_gpu.schema import Environment, Kind, Resources, WorkloadSpec
from jupyter_gpu.services.kernel_requests import kernel_ports
from tests.soak.place import MOST

KEYS = {"key": "5f0c1b0e7d3a4c6f9b8a7d6e5c4b3a29"}
TTL_S = 1e6  # so that all can be looked at when all is over

_ENDS = {
    "well": "sleep {s}",
    "badly": "sleep {s}; exit 3",
    "by a signal": "sleep {s}; kill -9 $$",
    "only by KILL": "trap '' TERM; sleep {s}; exit 4",
    "with a child of its own session": "setsid sleep 600 & sleep {s}",
}
_HOW_OFTEN = (60, 15, 5, 10, 10)


def a_batch(dice: random.Random, number: str, *, seconds: float | None = None) -> WorkloadSpec:
    """Return a batch run; its queue is the first part of its id."""
    queue = dice.choice(list(MOST))
    script = dice.choices(list(_ENDS.values()), _HOW_OFTEN)[0]
    return WorkloadSpec(
        id=f"{queue}-{number}",
        name=f"{queue} {number}",
        kind=Kind.BATCH,
        queue=queue,
        priority=dice.randrange(-2, 4),
        resources=Resources(gpus=min(dice.choice((0, 1, 1, 1, 2, 2, 3)), MOST[queue]), cpus=0.1, memory_bytes="64MiB"),
        environment=Environment(working_directory="/"),
        command=("/bin/sh", "-c", script.format(s=round(dice.random() if seconds is None else seconds, 3))),
        retries=dice.choice((0, 0, 1, 2)),
        preemptible=dice.random() < 0.9,
        max_runtime_s=dice.choice((None, None, None, 0.4)),
        grace_s=dice.choice((0.0, 0.1, 0.5)),
        ttl_s=TTL_S,
    )


def a_kernel(dice: random.Random, number: str, *, real: bool) -> WorkloadSpec:
    """Return a kernel: ipykernel's, or one that never listens; where nobody is its client it ends within seconds."""
    queue = dice.choice(list(MOST))
    ipykernel = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
    silent = (sys.executable, "-S", "-E", "-c", "import time; time.sleep(600)", "{connection_file}")
    return WorkloadSpec(
        id=f"{queue}-{number}",
        name=f"{queue} {number}",
        kind=Kind.KERNEL,
        queue=queue,
        priority=dice.randrange(-2, 4),
        resources=Resources(gpus=1, cpus=0.1, memory_bytes="256MiB"),
        environment=Environment(working_directory="/"),
        command=ipykernel if real else silent,
        ports=kernel_ports(),
        secrets=tuple(KEYS),
        start_timeout_s=60.0 if real else 3.0,
        orphan_after_s=3.0,
        orphan_running_after_s=3.0,
        relaunch_within_s=1.0,
        grace_s=0.5,
        ttl_s=TTL_S,
    )
