"""A full disk, a folder that may only be read, a damaged store: what is said of it, and that all goes on when it is over."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jupyter_gpu.schema import Environment, Kind, Resources, WorkloadSpec
from tests.soak.outcome import Outcome, judge, read_independently, wait_until, wait_until_idle
from tests.soak.place import QUEUES, SoakPlace, a_place, an_empty_place
from tests.soak.wishes import TTL_S

_APPLY = ("apply", QUEUES.model_dump(mode="json"))
_DISK_BYTES = 4 << 20
_MAY_SAY = ("BackendError", "BackendTimeoutError", "InvalidRequestError", "NotFoundError")
_IDLE_WITHIN_S = 90.0


def full(seed: int) -> Outcome:
    """Fill the disk while two run, two wait and others come; then make room."""
    outcome = Outcome("full disk")
    with an_empty_place() as place, _a_small_disk(place, outcome) as is_there:
        if not is_there:
            return outcome
        place.do(_APPLY, *map(_submitting, (a_run(f"vision-{number}", seconds=3) for number in range(4))))
        filler = place.state / "filler"
        with read_independently(place, outcome):
            _fill(filler)
            big = (a_run(f"night-{number}", seconds=0.1, words="x" * 20_000) for number in range(20))
            said = [answer for answer in place.act(*map(_submitting, big), ("look", None), ("list", None)) if answer]
            outcome.numbers["refused while full"] = len(said)
            outcome.expect(any("space" in text for _, text in said), f"nobody spoke of the space on the disk: {said[:3]}")
            outcome.expect(all(name in _MAY_SAY for name, _ in said), f"other errors than those of a place: {said[:3]}")
            with outcome.noting("programs on a full disk"):
                wait_until(lambda: "program" not in place.processes().values(), "what runs comes to its end", within_s=60)
            filler.unlink()
            place.do(("look", None), *map(_submitting, (a_run(f"speech-{number}", seconds=0.1) for number in range(4))))
            wait_until_idle(place, outcome, within_s=_IDLE_WITHIN_S)
        judge(place, outcome)
    return outcome


def read_only(seed: int) -> Outcome:
    """Let nobody write into the state folder while two run and two wait; then let them."""
    outcome = Outcome("read-only folder")
    with an_empty_place() as place:
        place.do(_APPLY, *map(_submitting, (a_run(f"vision-{number}", seconds=2) for number in range(4))))
        with read_independently(place, outcome), _nobody_writes(place.state, outcome) as is_so:
            if is_so:
                run = _submitting(a_run("night-1", seconds=0.1))
                said = place.act(run, ("look", None), ("list", None), ("cancel", "vision-0"), ("tend", None))
                outcome.numbers["refused while read-only"] = sum(answer is not None for answer in said)
                outcome.expect(said[0] and str(place.state) in said[0][1], f"the folder is not named: {said[0]}")
                outcome.expect(all(one is None or one[0] in _MAY_SAY for one in said), f"other errors: {said}")
                with outcome.noting("programs over a folder that may only be read"):
                    wait_until(lambda: not place.processes().keys() & _programs(place), "what runs ends", within_s=60)
        place.do(("look", None), run if is_so else ("look", None))
        wait_until_idle(place, outcome, within_s=_IDLE_WITHIN_S)
        judge(place, outcome)
    return outcome


def damaged(seed: int, *, variants: int = 12) -> Outcome:
    """Overwrite parts of the store, in copies of a place; and take its advice while programs of the old store run."""
    outcome, dice = Outcome("damaged store"), random.Random(seed)
    with a_place() as place:
        place.do(*map(_submitting, (a_run(f"vision-{number}", seconds=60) for number in range(8))))
        place.kill_all()
        outcome.numbers["variants"], outcome.numbers["said damaged"] = variants, 0
        for variant in range(variants):
            with an_empty_place() as copy:
                shutil.copytree(place.state, copy.state)
                how = _damage(copy.state / "store.db", dice)
                _try_everything(copy, outcome, f"variant {variant} ({how})")
    with a_place() as place, read_independently(place, outcome):
        place.do(*map(_submitting, (a_run(f"vision-{number}", seconds=600) for number in range(5))))
        with outcome.noting("starting again"):
            wait_until(lambda: len(_programs(place)) >= place.devices, "four run", within_s=30)
            place.kill_keepers()
            (place.state / "store.db").write_bytes(b"this is no store" * 512)
            said = place.act(("list", None))[0]
            outcome.expect(said and "is damaged" in said[1] and "move it away" in said[1], f"no advice was given: {said}")
            (place.state / "store.db").rename(place.state / "store.db.damaged")
            place.do(_APPLY)
            place.do(*map(_submitting, (a_run(f"vision-new-{number}", seconds=0.5) for number in range(5))))
        wait_until_idle(place, outcome, within_s=_IDLE_WITHIN_S)
        judge(place, outcome)
    return outcome


def a_run(id: str, *, seconds: float, words: str = "", **changes: Any) -> WorkloadSpec:
    """Return a batch run on one device; ``words`` only make it large."""
    return WorkloadSpec(
        id=id,
        name=id,
        kind=Kind.BATCH,
        queue=id.split("-")[0],
        resources=Resources(gpus=1, cpus=0.1, memory_bytes="64MiB"),
        environment=Environment(working_directory="/", variables={"WORDS": words} if words else {}),
        command=("/bin/sh", "-c", f"echo hello; sleep {seconds}; echo good-bye"),
        grace_s=0.5,
        ttl_s=TTL_S,
    ).model_copy(update=changes)


def _submitting(spec: WorkloadSpec) -> tuple[str, Any]:
    return "submit", spec.model_dump(mode="json")


def _programs(place: SoakPlace) -> set[int]:
    return {pid for pid, kind in place.processes().items() if kind == "program"}


@contextmanager
def _a_small_disk(place: SoakPlace, outcome: Outcome) -> Iterator[bool]:
    """Put the state folder on a small file system of its own; gives whether that could be done."""
    place.state.mkdir(mode=0o700)
    if not _mounted("-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=700", "tmpfs", str(place.state)):
        outcome.numbers["left out"] = "this account may not mount a small file system"
        yield False
        return
    outcome.numbers["disk"] = f"tmpfs of {_DISK_BYTES >> 20} MiB"
    try:
        yield True
    finally:
        place.kill_all()
        _unmount(place.state)


@contextmanager
def _nobody_writes(folder: Path, outcome: Outcome) -> Iterator[bool]:
    """Make a folder read-only for whoever opens something in it from now on; gives whether that could be done."""
    if os.getuid():  # root may write whatever the mode says
        outcome.numbers["how"] = "by its mode"
        folder.chmod(0o500)
        try:
            yield True
        finally:
            folder.chmod(0o700)
        return
    if not (_mounted("--bind", str(folder), str(folder)) and _mounted("-o", "remount,ro,bind", str(folder))):
        outcome.numbers["left out"] = "this account may not mount"
        yield False
        return
    outcome.numbers["how"] = "mounted read-only"
    try:
        yield True
    finally:
        _unmount(folder)


def _mounted(*arguments: str) -> bool:
    with suppress(FileNotFoundError):
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    return False


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=False)


def _fill(path: Path) -> None:
    """Write until nothing more goes in."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        for size in (65536, 4096, 512):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def _damage(path: Path, dice: random.Random) -> str:
    """Damage a file that nobody has open, and return how."""
    content = bytearray(path.read_bytes())
    how = dice.choice(("header", "scattered", "cut off", "page of noise", "empty"))
    if how == "header":
        content[:100] = dice.randbytes(100)
    elif how == "scattered":
        for _ in range(40):
            at = dice.randrange(100, len(content) - 16)
            content[at : at + 16] = dice.randbytes(16)
    elif how == "cut off":
        del content[dice.randrange(len(content)) :]
    elif how == "page of noise":
        at = 4096 * dice.randrange(1, max(len(content) // 4096, 2))
        content[at : at + 4096] = dice.randbytes(4096)
    else:
        content.clear()
    path.write_bytes(content)
    for beside in ("-wal", "-shm"):
        if dice.random() < 0.5:
            path.with_name(path.name + beside).unlink(missing_ok=True)
    return how


def _try_everything(place: SoakPlace, outcome: Outcome, what: str) -> None:
    actions = [("look", None), ("list", None), _submitting(a_run("night-1", seconds=0.1)), ("cancel", "vision-1"), ("tend", None)]
    with outcome.noting(what):
        said = [answer for answer in place.act(*actions, timeout_s=60) if answer]
        outcome.expect(all(name in _MAY_SAY for name, _ in said), f"{what}: other errors than those of a place: {said}")
        outcome.numbers["said damaged"] += any("is damaged" in text for _, text in said)
