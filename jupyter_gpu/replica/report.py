"""What a replica says: reports in its log, its log where no container runtime keeps one, and its end."""

from __future__ import annotations

import json
import os
import signal
import time

TYPE_CHECKING = False  # typing itself would cost the start of every kernel some milliseconds
if TYPE_CHECKING:
    from typing import Any

    End = tuple[str, str, "int | None", "str | None", dict[str, Any]]

FRAME = "\x1e"  # RFC 7464
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_BYTES = 4096  # the kubelet keeps no more
RESERVED_BYTES = 4096
LINE_BYTES = 16384  # longer lines are split into P (partial) records, as container runtimes do
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def frame(report: str, **fields: Any) -> str:
    """Return a report as one line of a log."""
    return FRAME + json.dumps({"report": report, **fields}, ensure_ascii=True)


def end_of(status: int) -> End:
    """Return (code, message, exit_code, signal, facts) of a program by what ``os.waitpid`` said of it."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return ("end.completed" if code == 0 else "end.exit_code"), "it ended with exit code %d" % code, code, None, {}
    name = signal_name(-code)
    return "end.signal", "it was ended by signal %s" % name, None, name, {}


def signal_name(number: int) -> str:
    """Return the name of a signal, ``SIGKILL``, or its number as text."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def write_whole(path: str, value: object) -> None:
    """Replace a JSON file as a whole: a reader sees the old or the new one. What `reserve` has reserved is used for it."""
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)
        file.truncate()
    os.replace(path + ".new", path)


def reserve(path: str) -> None:
    """Take the space now that `write_whole` will need, so that a disk that is full by then does not matter."""
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, bytes(RESERVED_BYTES))
    finally:
        os.close(descriptor)


class ContainerLog:
    """A pod's log: the program has the container's own stdout and stderr, and only reports pass through here."""

    def report(self, line: str) -> None:
        """Write a report as a line; half a line that the program printed just before stands in front of it."""
        try:
            os.write(1, (line + "\n").encode())
        except OSError:
            pass  # nobody reads it, or there is no room: the program goes on

    def end(self, report: dict[str, Any]) -> None:
        """Keep the end where the kubelet looks for it."""
        text = json.dumps(report)
        if len(text.encode()) > TERMINATION_BYTES:
            text = json.dumps({**report, "message": report["message"][:1000], "facts": {}})
        try:
            with open(TERMINATION_LOG, "w") as file:
                file.write(text[:TERMINATION_BYTES])
        except OSError:
            pass  # a read-only or missing file only costs detail: the log has the report too


class FolderLog:
    """A local place's log: what the program said, through pipes, in the CRI log format."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: int | None = None
        self._is_broken = False  # whether the last record was written in part
        self._rest = {"stdout": b"", "stderr": b""}

    def feed(self, stream: str, data: bytes) -> None:
        """Take what came out of the program's stdout or stderr; empty data is its end."""
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        records = [(line, b"F") for line in lines]
        while len(rest) >= LINE_BYTES:
            records.append((rest[:LINE_BYTES], b"P"))
            rest = rest[LINE_BYTES:]
        if not data and rest:
            records.append((rest, b"F"))
            rest = b""
        self._rest[stream] = rest
        self._write(stream, records)

    def report(self, line: str) -> None:
        """Write a report as a line of stdout."""
        self._write("stdout", [(line.encode(), b"F")])

    def _write(self, stream: str, records: list[tuple[bytes, bytes]]) -> None:
        now = time.time()
        stamp = "%s.%09dZ %s " % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)), now % 1 * 1e9, stream)
        data = b"".join(stamp.encode() + tag + b" " + line + b"\n" for line, tag in records)
        if self._is_broken:
            data = b"\n" + data
        try:
            if self._file is None:
                self._file = os.open(os.path.join(self._folder, "log"), _APPEND, 0o600)
            while data:
                written = os.write(self._file, data)
                self._is_broken = data[written - 1 : written] != b"\n"
                data = data[written:]
        except OSError:
            pass  # a full disk must not end the program: its output is lost, its work is not

    def reserve(self) -> None:
        """Take the space for the end."""
        try:
            reserve(os.path.join(self._folder, "end.json"))
        except OSError:
            pass  # then there may be some when it is needed

    def end(self, report: dict[str, Any]) -> None:
        """Keep the end where the backend looks for it.

        Raises:
            OSError: there is no room for it.
        """
        write_whole(os.path.join(self._folder, "end.json"), report)
