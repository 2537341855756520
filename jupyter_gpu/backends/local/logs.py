"""Read what a runner wrote of its program's output: the CRI log format, one record a line.

``<RFC 3339 time> stdout|stderr F|P <text>``; a P record is the first part of a line that its stream's next record goes on with.

Source: kubernetes/kubernetes, pkg/kubelet/kuberuntime/logs/logs.go, and the Container Runtime Interface's logging design.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from jupyter_gpu.schema import LogLine, Stream, report_in

_CHUNK_BYTES = 1 << 16
_LONGEST = 1 << 20  # characters of a line; what never ends a line is shown in pieces of this


@dataclass
class LogReader:
    """Reads one attempt's log from where the last read ended.

    Args:
        path: the log.
        attempt: whose it is.
        since: lines before that are passed over.
    """

    path: Path
    attempt: int
    since: datetime | None = None
    _offset: int = 0
    _rest: bytes = b""
    _parts: dict[Stream, list[LogLine]] = field(default_factory=dict)
    _time: datetime | None = None

    def read(self) -> list[LogLine] | None:
        """Return the next lines, perhaps none yet of a long one; None at the end of what there is by now."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_CHUNK_BYTES)
        except FileNotFoundError:  # nothing was said yet
            return None
        if not data:
            return None
        self._offset += len(data)
        *records, self._rest = (self._rest + data).split(b"\n")
        return [line for record in records for line in self._lines(record)]

    def last(self) -> list[LogLine]:
        """Return what there is of lines that never got an end."""
        lines = list(self._lines(self._rest)) if self._rest else []
        self._rest = b""
        return lines + [line for stream in list(self._parts) if (line := self._joined(stream))]

    def _lines(self, record: bytes) -> Iterator[LogLine]:
        time, stream, tag, text = self._take_apart(record.decode(errors="replace"))
        if self.since is not None and time < self.since:
            return
        line = LogLine(time=time, replica=0, attempt=self.attempt, stream=stream, text=text)
        parts = self._parts.setdefault(stream, [])
        parts.append(line)
        is_whole = tag != "P" or sum(len(part.text) for part in parts) > _LONGEST
        if is_whole and (whole := self._joined(stream)):
            yield whole

    def _take_apart(self, record: str) -> tuple[datetime, Stream, str, str]:
        fields = record.split(" ", 3)
        try:
            time, stream, tag = datetime.fromisoformat(fields[0]), Stream(fields[1]), fields[2].split(":")[0]
            if time.tzinfo is None or tag not in ("F", "P"):
                raise ValueError(record)
        except (ValueError, IndexError):  # no record: shown as it is
            return self._time or self._modified(), Stream.STDOUT, "F", record
        self._time = time.astimezone(UTC)
        return self._time, stream, tag, fields[3] if len(fields) > 3 else ""

    def _joined(self, stream: Stream) -> LogLine | None:
        parts = self._parts.pop(stream, [])
        if not parts:
            return None
        line = parts[0].model_copy(update={"text": "".join(part.text for part in parts)}) if len(parts) > 1 else parts[0]
        report = report_in(line.text) if stream is Stream.STDOUT else None
        return line if report is None else line.model_copy(update={"stream": Stream.REPORT, "text": "", "report": report})

    def _modified(self) -> datetime:
        return datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
