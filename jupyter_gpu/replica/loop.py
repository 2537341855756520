"""The loop in which all that a replica does happens, one thing after the other: descriptors, deadlines and signals."""

from __future__ import annotations

import selectors
import signal
import socket
import time

TYPE_CHECKING = False  # typing itself would cost the start of every kernel some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import FileDescriptorLike

_CAUGHT = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Loop:
    """Waits for whatever comes next, and does what was to be done then. Whoever is one makes the steps."""

    def __init__(self) -> None:
        self._deadlines: dict[str, tuple[float, Callable[[], object]]] = {}
        self._selector = selectors.DefaultSelector()

    def listen(self, descriptor: FileDescriptorLike, handle: Callable[[], object]) -> None:
        """Call ``handle`` whenever the descriptor can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, handle)

    def ignore(self, descriptor: FileDescriptorLike) -> None:
        """Listen to a descriptor no more."""
        self._selector.unregister(descriptor)

    def at(self, name: str, seconds: float, act: Callable[[], object]) -> None:
        """Call ``act`` in so many seconds; a deadline of the same name is replaced."""
        self._deadlines[name] = (time.monotonic() + seconds, act)

    def forget(self, name: str) -> None:
        """Drop a deadline."""
        self._deadlines.pop(name, None)

    def left_s(self, name: str) -> float | None:
        """Return the seconds until a deadline; None if there is none of that name."""
        return self._deadlines[name][0] - time.monotonic() if name in self._deadlines else None

    def step(self) -> None:
        """Wait for a descriptor, a signal or a deadline, and do what is due."""
        now = time.monotonic()
        due = min((when for when, _ in self._deadlines.values()), default=None)
        for key, _ in self._selector.select(None if due is None else max(0.0, due - now)):
            key.data()
        now = time.monotonic()
        for name, (when, act) in list(self._deadlines.items()):
            if when <= now and self._deadlines.get(name, (None,))[0] == when:
                del self._deadlines[name]
                act()

    def catch_signals(self) -> None:
        """Let `signalled` have the signals that would end this process, and that of a child's end."""
        self._wake, write = socket.socketpair()
        self._wake.setblocking(False)
        write.setblocking(False)
        signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        self._write = write  # kept open
        for number in _CAUGHT:
            signal.signal(number, lambda *_: None)  # what came is read from the wake-up descriptor
        self.listen(self._wake, lambda: self.signalled(set(self._wake.recv(4096))))

    def signalled(self, numbers: set[int]) -> None:
        """Take the signals that have come since the last time."""
