"""The store: one SQLite file that many processes read and write at once, and that newer code may have written.

What SQLite and the file system say of trouble becomes an error of ours here, once.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_gpu.backends.local import migrations
from jupyter_gpu.errors import BackendError, BackendTimeoutError

_BUSY_S = 20.0  # a transaction takes milliseconds; only a stopped process holds one longer
_RETRIED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

MIGRATIONS: tuple[str, ...] = (migrations.VERSION_1, migrations.VERSION_2)
"""One script per version; it brings a store of the version before to that one."""


class Store:
    """One connection to the store, for any thread, one at a time. `transaction` writes, `rows` reads.

    Nothing else in a process may open the file, be it to look at it: when that is closed, the process loses all locks that SQLite
    holds, and then writers meet (https://www.sqlite.org/howtocorrupt.html, section 2.2).

    Args:
        path: the file, made if need be; None is an empty store that nobody else sees.

    Raises (every method):
        BackendError: the file is damaged, read-only, or written by newer code and asked to change; or the disk is full.
        BackendTimeoutError: another process did not let go of it.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self._is_file = path or Path(":memory:"), path is not None
        self._mutex = threading.RLock()
        with foreign_errors(self.path):
            self._connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                self._version: int = self._patiently(self._migrate)
                self._identity = self._look()
            except BaseException:
                self._connection.close()
                raise

    @property
    def is_newer(self) -> bool:
        """Whether newer code wrote it, so that this code may only read."""
        return self._version > len(MIGRATIONS)

    @property
    def is_removed(self) -> bool:
        """Whether the file is gone or another one has its name: what is written here from now on, nobody else will see."""
        return self._look() != self._identity

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run statements that all happen or none; nobody else writes meanwhile."""
        with self._mutex, foreign_errors(self.path):
            self._refuse_if_removed()
            self._patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))
            try:
                self._version = self._read_version()
                self._refuse_if_newer()
                yield self._connection
                self._patiently(lambda: self._connection.execute("COMMIT"))
            except BaseException:
                self._roll_back()
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let all that is read meanwhile be of one moment."""
        with self._mutex, foreign_errors(self.path):
            self._patiently(lambda: self._connection.execute("BEGIN"))
            try:
                yield
            finally:
                self._roll_back()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return what one SELECT finds, as tuples."""
        with self._mutex, foreign_errors(self.path):
            found: list[Any] = self._patiently(lambda: self._connection.execute(statement, parameters).fetchall())
            return found

    def data_version(self) -> int:
        """Return a number that changes whenever another connection has written."""
        self._refuse_if_removed()
        return int(self.rows("PRAGMA data_version")[0][0])

    def close(self) -> None:
        """Let go of the file."""
        with self._mutex:
            self._connection.close()

    def _migrate(self) -> int:
        connection = self._connection
        version = self._read_version()
        if version < len(MIGRATIONS):
            if self._is_file:
                self.path.chmod(0o600)  # the files beside it are made alike
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                version = self._read_version()  # another opener may have been first
                for script in MIGRATIONS[version:]:
                    for statement in _statements(script):
                        connection.execute(statement)
                version = max(version, len(MIGRATIONS))
                connection.execute(f"PRAGMA user_version = {version}")
                connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        connection.execute("PRAGMA synchronous = NORMAL")  # what a power cut may cost is the last moment's wishes, never the file
        return version

    def _look(self) -> tuple[int, int] | None:
        """Return what tells one file from another of the same name; None if there is none."""
        try:
            facts = self.path.stat() if self._is_file else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (facts.st_dev, facts.st_ino) if facts else None

    def _refuse_if_removed(self) -> None:
        if self.is_removed:
            raise BackendError(
                f"{self.path} was removed or replaced while it was in use, and what it knew is forgotten: try again, and it is "
                "opened anew"
            )

    def _refuse_if_newer(self) -> None:
        if self.is_newer:
            raise BackendError(
                f"{self.path} was written by a newer jupyter-gpu (its version is {self._version}, this one knows "
                f"{len(MIGRATIONS)}): it can be looked at, and changed only after an upgrade of this one"
            )

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # a full disk has ended it already
            self._connection.execute("ROLLBACK")

    def _read_version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _patiently(self, act: Any) -> Any:
        """Do again what met another writer where SQLite itself does not wait, as when it makes or recovers the WAL."""
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for part in script.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):  # the body of a trigger holds some of its own
            yield statement
            statement = ""


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _RETRIED


@contextmanager
def foreign_errors(path: Path) -> Iterator[None]:
    """Translate what SQLite or the file system says of a state folder, or a file in it, into errors of ours.

    Raises:
        BackendError: in place of ``sqlite3.Error`` and ``OSError``.
    """
    try:
        yield
    except UnicodeDecodeError as error:  # of the sqlite3 module, where a message quotes what was a schema
        raise _damage(path, error) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if _is_busy(error):
            raise BackendTimeoutError(
                f"{path} is kept busy by another process ({error}); try again, or end that process"
            ) from error
        if code in _DAMAGED:
            raise _damage(path, error) from error
        raise BackendError(f"{path} could not be used ({error}): {_advice(path, code)}") from error
    except OSError as error:
        where = error.filename or path
        advice = (
            "free some space"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "see to it, or set state_folder to another folder"
        )
        raise BackendError(f"{where} could not be used ({error.strerror or error}): {advice}") from error


def _damage(path: Path, error: Exception) -> BackendError:
    return BackendError(
        f"{path} is damaged ({error}): move it away (mv '{path}' '{path}.damaged') and start again; what it knew of "
        "running and waiting workloads is then forgotten, and they are ended"
    )


def _advice(path: Path, code: int) -> str:
    if code == sqlite3.SQLITE_FULL:
        return "the disk is full, free some space"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
        return f"see that {path.parent} is writable and has space, or set state_folder to another folder"
    return f"move it away (mv '{path}' '{path}.damaged') if that goes on"
