"""The parent of a kernel: it keeps the device over restarts, and says what became of the kernel.

It starts the kernel first and imports pyzmq after, for its own channel, so that nobody waits for it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import sys
import time
from functools import partial

from . import processes, report
from .run import PROTOCOL, Replica

TYPE_CHECKING = False  # typing itself would cost the start of every kernel some milliseconds
if TYPE_CHECKING:
    from typing import Any

_CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
_PROBE_S = 0.01
_PROBE_FIRST_S = 0.1  # no kernel listens sooner
_GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00"  # ZMTP 3.0: signature and version; the mechanism would come next
_LINGER_MS = 500
_CLIENT_SPEAKS_S = 25.0  # a client that is there says hello every 10 s
_LAST_S = 2.0  # from TERM to KILL of a kernel that had to yield, at most; it is taken from the end of its grace period


class KernelParent(Replica):
    """One kernel process after the other, on the same device and the same ports."""

    looks_after_s = 1.5  # not while somebody waits for the kernel

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self._secrets = _read_secrets(spec["secrets"])
        self._starts = 0
        self._state = "starting"
        self._exit_code: int | None = None
        self._last = report.end_of(0)
        self._cause: dict[str, Any] | None = None  # what the kernel died of, if that was nobody's wish
        self._ends_at: float | None = None  # when what must end is killed
        self._asked = False  # whether the kernel's end, if it comes now, is somebody's wish
        self._respawn = False
        self._ending: tuple[bytes, dict[str, Any]] | None = None  # who asked for the end, and waits for the answer
        self._clients: set[bytes] = set()
        self._contact = time.monotonic()
        self._router: Any = None  # a zmq.Socket; pyzmq comes later
        self._connection_file = os.path.join(self.run_folder, "connection.json")

    # ---- the kernel

    def start(self) -> None:
        """Start the kernel, also again."""
        for name in _CHANNELS:
            _unlink_socket(self.spec["ports"][name])
        report.write_whole(self._connection_file, self._connection())
        self._state, self._exit_code, self._asked, self._respawn, self._cause = "starting", None, False, False, None
        super().start()
        self._starts += 1
        self.forget("relaunch")
        self.at("probe", _PROBE_FIRST_S, self._probe)
        if limit := self.spec.get("start_timeout_s"):
            self.at("listen", limit, self._never_listened)

    def started(self) -> None:
        """Open our own channel, now that the kernel is on its way."""
        self._open_channel()
        if self.spec.get("orphan_running_after_s"):
            self._watch_for_orphans()

    def command(self) -> list[str]:
        """Return the kernel's command with the connection file in it."""
        return [word.replace("{connection_file}", self._connection_file) for word in self.spec["command"]]

    def ended(self, status: int) -> None:
        """Keep the device and wait for a relaunch: a kernel's death is a report, not an end."""
        self.forget("probe")
        self.forget("listen")
        self.forget("term")
        self._state, self._exit_code = "exited", os.waitstatus_to_exitcode(status)
        self._last = self.told(*report.end_of(0 if self._asked and status != 0 else status))
        if self._respawn and not self.stopping:
            self._start_again()
        elif self.stopping or self._ending:
            self._end()
        else:
            if self._exit_code and not self._asked:
                code, message, exit_code, by, facts = self._last
                self._cause = {"code": code, "message": message, "facts": facts}
                self.log.report(report.frame("kernel", **self._cause, exit_code=exit_code, signal=by))
            self.at("relaunch", self.spec["relaunch_within_s"], self._end)
        self._tell()

    def stop(self) -> None:
        """Tell the clients, and ask the kernel to end; at once where it has died already.

        One that must make room for others is left alone for its grace period, but for the end of it: TERM ends a kernel at once,
        and what is in its memory may still be saved by whoever is told now. In a pod nobody says why it gets TERM, so there it is
        left alone for any reason, if somebody is there to save it; who knows that nothing is to be saved sends it the signal.
        """
        assert self.stopping is not None
        if self.pid is None:
            self._end()
            return
        grace_s = self.patience_s()
        self._ends_at = time.monotonic() + grace_s
        self.forget("term")
        if self.stopping["code"] == "end.preempted" or (self.stopping["code"] == "end.terminated" and self._is_used_in_a_pod()):
            self.at("term", grace_s - min(_LAST_S, grace_s / 4), partial(processes.signal_group, self.pid, signal.SIGTERM))
            self.at("grace", grace_s, self.kill)
        else:
            super().stop()
        self._tell()

    def _is_used_in_a_pod(self) -> bool:
        return not self.folder and bool(self._clients) and time.monotonic() - self._contact < _CLIENT_SPEAKS_S

    def _start_again(self) -> None:
        try:
            self.start()
        except OSError as error:
            self._fail_to_start(error)
            return
        self.write_state()

    def _end(self) -> None:
        self.finish(*self._last)
        if self._ending:
            self._answer(*self._ending)

    def _probe(self) -> None:
        mechanism = _listens(self.spec["ports"]["shell"])
        if mechanism is None:
            self.at("probe", _PROBE_S, self._probe)
            return
        if mechanism != b"CURVE" and self._public():
            self._end_for(
                "start.no_curve",
                "this kernel can't encrypt what it sends (ipykernel from 7.3 on can), so it may not use a network",
            )
            return
        self.forget("listen")
        self._state = "running"
        self._tell()

    def _never_listened(self) -> None:
        self._end_for("start.timeout", "the kernel did not listen within %g s" % self.spec["start_timeout_s"])

    def _public(self) -> bool:
        return isinstance(self.spec["ports"]["shell"], int) and "shell" not in (self.spec.get("loopback") or ())

    def _connection(self) -> dict[str, Any]:
        ports = self.spec["ports"]
        info: dict[str, Any] = {"transport": "tcp", "ip": "0.0.0.0" if self._public() else "127.0.0.1", "kernel_name": ""}
        if isinstance(ports["shell"], str):
            info.update(transport="ipc", ip=ports["shell"].rsplit("-", 1)[0])
        for name in _CHANNELS:
            info[name + "_port"] = int(str(ports[name]).rsplit("-", 1)[-1])
        info.update(self._secrets)
        info.setdefault("signature_scheme", "hmac-sha256")
        return info

    # ---- our own channel

    def _open_channel(self) -> None:
        if self.spec.get("zmq_path"):
            sys.path.extend(self.spec["zmq_path"])
        else:
            import site

            site.main()
        try:
            import zmq
        except ImportError:
            self._end_for("start.no_pyzmq", "this image has no pyzmq, which comes with ipykernel")
            return
        self._zmq = zmq
        self._router = zmq.Context.instance().socket(zmq.ROUTER)
        self._router.linger = _LINGER_MS
        self._router.router_mandatory = True
        self._router.heartbeat_ivl, self._router.heartbeat_timeout = 5000, 20000
        if "curve_secretkey" in self._secrets:
            self._router.curve_server = True
            self._router.curve_publickey = self._secrets["curve_publickey"].encode()
            self._router.curve_secretkey = self._secrets["curve_secretkey"].encode()
        port = self.spec["ports"]["parent"]
        _unlink_socket(port)
        host = "127.0.0.1" if "parent" in (self.spec.get("loopback") or ()) else "*"
        address = "ipc://" + port if isinstance(port, str) else "tcp://%s:%d" % (host, port)
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            self._end_for("start.parent", "the kernel's parent can't listen at %s: %s" % (address, error))
            return
        self.listen(self._router.fd, self._hear)
        self._hear()

    def step(self) -> None:
        """Do what is due, and hear who asks."""
        super().step()
        if self._router is not None:
            self._hear()  # the descriptor tells edges only, and sending may have consumed one

    def _hear(self) -> None:
        while self._router.events & self._zmq.POLLIN:
            sender, *frames = self._router.recv_multipart()
            request = self._authentic(frames)
            if request is None:
                continue
            self._contact = time.monotonic()
            self._clients.add(sender)  # also one that came back with another identity after its connection broke
            act = getattr(self, "_do_" + str(request.get("op")), None)
            try:
                if act is None:
                    raise ValueError("there is no %s here" % request.get("op"))
                act(sender, request)
            except (ValueError, TypeError, KeyError, OverflowError, OSError) as error:
                self._send(sender, {"n": request.get("n"), "ok": False, "error": "%s: %s" % (request.get("op"), error)})

    def _authentic(self, frames: list[bytes]) -> dict[str, Any] | None:
        if len(frames) != 2 or not hmac.compare_digest(self._sign(frames[0]), frames[1]):
            return None
        try:
            request = json.loads(frames[0])
        except ValueError:
            return None
        return request if isinstance(request, dict) else None

    def _sign(self, data: bytes) -> bytes:
        return hmac.new(self._secrets["key"].encode(), data, hashlib.sha256).hexdigest().encode()

    def _send(self, client: bytes, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        try:
            self._router.send_multipart([client, data, self._sign(data)], self._zmq.DONTWAIT)
        except self._zmq.ZMQError:
            self._clients.discard(client)  # it is gone, or does not read

    def _answer(self, client: bytes, request: dict[str, Any]) -> None:
        self._send(client, {"n": request.get("n"), "ok": True, **self._status()})

    def _status(self) -> dict[str, Any]:
        kernel = {"start": self._starts, "state": self._state, "pid": self.pid, "exit_code": self._exit_code}
        ends_in_s = None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())
        spec = self.spec
        head = {"protocol": PROTOCOL, "id": spec["id"], "attempt": spec["attempt"], "node": self.node, "devices": self.devices}
        stopping = self.stopping and {"code": self.stopping["code"], "message": self.stopping["message"]}
        return {**head, "kernel": kernel, "cause": self._cause, "stopping": stopping, "ends_in_s": ends_in_s}

    def _tell(self) -> None:
        for client in list(self._clients):
            self._send(client, {"event": "kernel", **self._status()})

    def _do_hello(self, client: bytes, request: dict[str, Any]) -> None:
        self._answer(client, request)

    def _do_signal(self, client: bytes, request: dict[str, Any]) -> None:
        number = int(request["signum"])
        if self.pid is not None:
            self._asked = self._asked or number in (signal.SIGTERM, signal.SIGKILL)
            self.killed = self.killed or number == signal.SIGKILL
            processes.signal_group(self.pid, number)
        self._answer(client, request)

    def _do_spawn(self, client: bytes, request: dict[str, Any]) -> None:
        if request.get("command"):
            self.spec["command"] = request["command"]
        asked = request.get("variables") or {}
        self.spec["variables"].update(
            {name: asked[name] for name in asked if not name.startswith("JUPYTER_GPU_")}
        )  # those are ours
        if self.pid is None:
            self._start_again()
        else:
            self._respawn = True
            self.kill()
        self._answer(client, request)

    def _do_end(self, client: bytes, request: dict[str, Any]) -> None:
        self._ending = (client, request)
        if self.pid is None:
            self._end()
        else:
            self._asked = True
            self.kill()

    def _watch_for_orphans(self) -> None:
        limit = self.spec["orphan_running_after_s"]
        alone = time.monotonic() - self._contact
        if alone < limit:
            self.at("orphan", limit - alone, self._watch_for_orphans)
        elif not self.stopping:
            self.stopping = {"code": "end.orphaned", "message": "no client was there for %g s" % limit}
            self.stop()

    def _end_for(self, code: str, message: str) -> None:
        """End at once, for a reason that lies with the kernel."""
        if not self.stopping and not self.result:
            self.stopping = {"code": code, "message": message, "grace_s": 0}
            if self.pid is None:
                self.stop()
            else:
                self.kill()

    def _close(self) -> int:
        code = super()._close()
        if self._router is not None:
            self._router.close()
            self._zmq.Context.instance().term()  # until the last answer is out, or has lingered
        shutil.rmtree(self.run_folder, ignore_errors=True)
        return code


def _read_secrets(path: str) -> dict[str, str]:
    if os.path.isfile(path):
        with open(path) as file:
            secrets: dict[str, str] = json.load(file)
            return secrets
    secrets = {}
    for name in os.listdir(path):
        if not name.startswith("."):  # a Secret's volume keeps its versions in hidden folders
            with open(os.path.join(path, name)) as file:
                secrets[name] = file.read()
    return secrets


def _unlink_socket(port: int | str) -> None:
    if isinstance(port, str):
        try:
            os.unlink(port)
        except FileNotFoundError:
            pass


def _listens(port: int | str) -> bytes | None:
    """Return the ZMTP security mechanism of what listens on a port, ``b"CURVE"`` or ``b"NULL"``; None if nothing does.

    Source: ZMTP 3.0 (ZeroMQ RFC 23), section "Greeting": the mechanism is 20 octets at offset 12.
    """
    with socket.socket(socket.AF_UNIX if isinstance(port, str) else socket.AF_INET) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(port if isinstance(port, str) else ("127.0.0.1", port))
            probe.sendall(_GREETING)
            greeting = b""
            while len(greeting) < 32:
                data = probe.recv(64)
                if not data:
                    return None
                greeting += data
        except OSError:
            return None
    return greeting[12:32].rstrip(b"\0")
