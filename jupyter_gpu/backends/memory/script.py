"""The programs of virtual time: what they would say and how they would end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from jupyter_gpu.schema import Reason, Schema, Stream


class Script(Schema):
    """What a program does, in this order: it says its lines, waits, and ends. Unknown keys are another interpreter's."""

    model_config = ConfigDict(extra="ignore")

    tells: tuple[str, ...] = Field((), description="Names of variables to print as NAME=value.")
    prints: tuple[str, ...] = Field((), description="Lines of stdout.")
    counts: int = Field(0, description="How many lines 'line 1', 'line 2'... it prints.")
    rest: str = Field("", description="Last words of stdout, without a line end.")
    stderr: tuple[str, ...] = Field((), description="Lines of stderr.")
    pause_s: float = Field(0.0, ge=0, description="Seconds after each line.")
    seconds: float = Field(0.0, ge=0, allow_inf_nan=True, description="Seconds it stays after the last line.")
    exit_code: int = 0
    signal: str | None = Field(None, description="Name of the signal it ends itself by.")
    ignores_term: bool = False
    by_rank: dict[int, dict[str, Any]] = Field(default_factory=dict, description="What is otherwise for a replica, by its rank.")

    @classmethod
    def of(cls, command: tuple[str, ...], rank: int = 0) -> Script:
        """Return the script of a replica, from a command's last word; one that goes on for ever if that is none."""
        try:
            script = cls.model_validate_json(command[-1])
            return cls.model_validate(script.model_dump() | script.by_rank.get(rank, {}))
        except ValidationError:
            return cls(seconds=math.inf)

    def lines(self, variables: Mapping[str, str]) -> list[tuple[Stream, str]]:
        """Return what the program says."""
        told = (f"{name}={variables.get(name, '')}" for name in self.tells)
        counted = (f"line {number}" for number in range(1, self.counts + 1))
        stdout = [(Stream.STDOUT, text) for text in (*told, *self.prints, *counted, *filter(None, [self.rest]))]
        return stdout + [(Stream.STDERR, text) for text in self.stderr]

    def end(self) -> Reason:
        """Return how the program ends when it is left alone."""
        if self.signal:
            return ended_by(self.signal)
        code = "end.exit_code" if self.exit_code else "end.completed"
        return Reason(code=code, message=f"it ended with exit code {self.exit_code}", facts={"exit_code": self.exit_code})


def ended_by(signal: str) -> Reason:
    """Return the end of a program that died by a signal."""
    return Reason(code="end.signal", message=f"it was ended by signal {signal}", facts={"signal": signal})
