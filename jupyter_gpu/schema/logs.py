"""What a replica said."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from pydantic import Field

from jupyter_gpu.schema.base import Schema, Time

FRAME = "\x1e"  # a line that starts so is a report: RFC 7464, "JavaScript Object Notation (JSON) Text Sequences"


class Stream(StrEnum):
    """Where a line came from. A pod's log does not tell stderr from stdout: there both are STDOUT."""

    STDOUT = "stdout"
    STDERR = "stderr"
    REPORT = "report"


class LogLine(Schema):
    """One line of a replica's log, without its line end."""

    time: Time
    replica: int = Field(ge=0)
    attempt: int = Field(ge=1)
    stream: Stream
    text: str = ""
    report: dict[str, Any] | None = Field(None, description="The object a report line holds; has a 'report' key with its type.")


def report_in(text: str) -> dict[str, Any] | None:
    """Return the report that a line of stdout is; None if it is plain text."""
    if not text.startswith(FRAME):
        return None
    try:
        report = json.loads(text.removeprefix(FRAME))
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
