"""What the replicas of virtual time say in their logs: their scripts' lines, and reports."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from jupyter_gpu.backends.memory.parts import NODE, Part, Replica
from jupyter_gpu.backends.memory.runs import Story
from jupyter_gpu.schema import LogLine, Reason, Stream, WorkloadSpec, report_in


def say(story: Story, part: Part, replica: Replica, started: datetime, now: datetime) -> None:
    """Let a replica say all that is due by now."""
    script, lines = replica.script, replica.script.lines(_variables(story.run.spec, replica.devices))
    while replica.said < len(lines) and started + timedelta(seconds=replica.said * script.pause_s) <= now:
        stream, text = lines[replica.said]
        if stream is Stream.STDOUT and (found := report_in(text)) is not None:
            report(story, part, replica, now, **found)
        else:
            line = LogLine(time=now, replica=replica.rank, attempt=part.attempt, stream=stream, text=text)
            story.log.append(line)
        replica.said += 1


def report_start(story: Story, part: Part, now: datetime) -> None:
    """Let all replicas of a part report that they run."""
    for replica in part.replicas:
        report(story, part, replica, now, report="started", devices=list(replica.devices), node=NODE, pid=None)


def report_end(story: Story, part: Part, replica: Replica, now: datetime, reason: Reason, program: Reason) -> None:
    """Let a replica report why it ended, and how its program did."""
    outcome = {key: program.facts.get(key) for key in ("exit_code", "signal")}
    end = {"code": reason.code, "message": reason.message, "facts": reason.facts, **outcome}
    report(story, part, replica, now, report="end", **end)


def report(story: Story, part: Part, replica: Replica, now: datetime, /, **content: Any) -> None:
    """Put a report into the log."""
    line = LogLine(time=now, replica=replica.rank, attempt=part.attempt, stream=Stream.REPORT, report=content)
    story.log.append(line)


def _variables(spec: WorkloadSpec, ids: tuple[str, ...]) -> dict[str, str]:
    visible = ",".join(ids)
    return {**spec.environment.variables, spec.resources.accelerator.visible_variable: visible, "JUPYTER_GPU_DEVICES": visible}
