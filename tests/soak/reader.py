"""An independent reader: it looks at processes, and uses nothing of jupyter-gpu.

``python -S -E reader.py STATE RULES`` runs until its stdin ends, then prints what it found as one JSON object. A device is held
by whatever process has it in JUPYTER_GPU_DEVICES. One pass over /proc takes time, so each look is two: those that the first
found and the second finds again lived at the same moment between the two, and only what is wrong among them counts.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

Holder = tuple[str, str]
"""Id and attempt."""
Process = tuple[str, str]
"""Pid and time of its start: what names a process for good."""

PAUSE_S = 0.1
MOST_FINDINGS = 20


class Reader:
    """What was seen so far.

    Args:
        state: the state folder of the place to look at.
        rules: ``most``, {queue: devices that it may hold at most}; ``lends``, {queue: what it lends at most}; ``own``, {queue:
            its nominal quota}. A queue is the part of an id before its first dash.
    """

    def __init__(self, state: str, rules: dict[str, dict[str, int]]) -> None:
        self._marker, self._rules = b"JUPYTER_GPU_STATE=" + os.fsencode(state), rules
        self.looks = 0
        self.wrong: list[str] = []
        self.seen: set[Holder] = set()
        self.most_at_once = 0
        self.most_by_queue: dict[str, int] = defaultdict(int)
        self.longest_s = 0.0

    def look(self) -> None:
        """Look once."""
        started = time.monotonic()
        first = {process: (holder, devices) for process, holder, devices in self._holders(_pids())}
        again = dict.fromkeys(process for process, _, _ in self._holders(pid for pid, _ in first))
        holders: dict[str, set[Holder]] = defaultdict(set)
        for process in first.keys() & again.keys():
            holder, devices = first[process]
            for device in devices:
                holders[device].add(holder)
        self.looks += 1
        self.longest_s = max(self.longest_s, time.monotonic() - started)
        self._judge(holders)

    def told(self) -> dict[str, object]:
        """Return what was found."""
        return {
            "looks": self.looks,
            "longest look (ms)": round(self.longest_s * 1000, 1),
            "attempts seen holding": len(self.seen),
            "devices held at once, at most": self.most_at_once,
            "by queue, at most": dict(sorted(self.most_by_queue.items())),
            "wrong": self.wrong,
        }

    def _judge(self, holders: dict[str, set[Holder]]) -> None:
        by_queue: dict[str, set[str]] = defaultdict(set)
        for device, those in holders.items():
            self.seen |= those
            if len(those) > 1:
                self._note(f"{device} is held by " + " and by ".join(f"{id}, attempt {attempt}" for id, attempt in sorted(those)))
            for id, _ in those:
                by_queue[id.split("-")[0]].add(device)
        self.most_at_once = max(self.most_at_once, len(holders))
        held = {queue: len(devices) for queue, devices in by_queue.items()}
        for queue, count in held.items():
            self.most_by_queue[queue] = max(self.most_by_queue[queue], count)
            if count > self._rules["most"].get(queue, count):
                self._note(f"{queue} holds {count} devices, and may hold {self._rules['most'][queue]}")
        for queue, lent in self._rules["lends"].items():
            others = sum(count for other, count in held.items() if other != queue)
            limit = lent + sum(own for other, own in self._rules["own"].items() if other != queue)
            if others > limit:
                self._note(f"{queue} lends more than {lent}: all others hold {others} devices")

    def _note(self, text: str) -> None:
        if text not in self.wrong and len(self.wrong) < MOST_FINDINGS:
            self.wrong.append(text)

    def _holders(self, pids: Iterable[str]) -> Iterator[tuple[Process, Holder, list[str]]]:
        for pid in pids:
            try:
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if self._marker not in variables:
                    continue
                started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
            except OSError:
                continue
            named = dict(variable.split(b"=", 1) for variable in variables if b"=" in variable)
            devices = named.get(b"JUPYTER_GPU_DEVICES", b"").decode()
            if devices:
                holder = (named[b"JUPYTER_GPU_WORKLOAD"].decode(), named[b"JUPYTER_GPU_ATTEMPT"].decode())
                yield (pid, started), holder, devices.split(",")


def _pids() -> list[str]:
    return [folder.name for folder in Path("/proc").glob("[0-9]*")]


def main() -> None:
    """Look until stdin ends."""
    reader = Reader(sys.argv[1], json.loads(sys.argv[2]))
    is_over = False
    while not is_over:
        is_over = bool(select.select([sys.stdin], [], [], PAUSE_S)[0])
        reader.look()
    print(json.dumps(reader.told()))


if __name__ == "__main__":
    main()
