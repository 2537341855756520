"""The kernel provisioner: Jupyter's way in. A kernelspec names a Profile, and its kernels are Workloads.

Source of the contract: `jupyter_client.provisioning.KernelProvisionerBase`.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

import zmq
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.multikernelmanager import MultiKernelManager
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from pydantic import ValidationError
from traitlets import Any as AnyTrait

from jupyter_gpu.config import load_site
from jupyter_gpu.connection import Connection, open_connection
from jupyter_gpu.errors import InvalidRequestError
from jupyter_gpu.names import object_name
from jupyter_gpu.schema import KernelOptions, LocalSettings, Phase, Profile, Workload, WorkloadSpec
from jupyter_gpu.schema.explaining import explain
from jupyter_gpu.services import Services
from jupyter_gpu.services.kernel import Kernel
from jupyter_gpu.services.kernel_requests import kernel_ports, kernel_request

T = TypeVar("T")
_PLAIN_PYTHON = {"python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}"}
_NOBODY_RETURNS_S = 60.0
_SAY_AFTER_S = 2.0
_SAY_AGAIN_S = 30.0


class GpuProvisioner(KernelProvisionerBase):
    """A kernel as a Workload of a place: queued, started, adopted, restarted in place."""

    profile = AnyTrait("gpu", config=True, help="Name of a profile in jupyter_gpu_config.")
    accelerator = AnyTrait(None, config=True, help="Resource name of the device; the profile's when absent.")
    gpus = AnyTrait(None, config=True, help="Devices; the profile's when absent.")
    cpus = AnyTrait(None, config=True, help="Cores; the profile's when absent.")
    memory = AnyTrait(None, config=True, help="Memory like '8GiB'; the profile's when absent.")
    queue = AnyTrait(None, config=True, help="The queue to wait in; the profile's when absent.")
    priority = AnyTrait(None, config=True, help="Higher starts first; the profile's when absent.")

    _connection: Connection
    _spec: WorkloadSpec
    _keys: Mapping[str, str]
    _added: set[str] | None = None
    _kernel: Kernel | None = None
    _has_process = False
    _expected = False
    """Whether the kernel's death, if it is dead, is no news."""

    # ---- what Jupyter asks, in the order of a kernel's life

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Check what is asked for, before anything is submitted."""
        arguments = kwargs.pop("extra_arguments", [])
        for ignored in ("transport_encryption", "kernel_id"):  # every kernel of ours that can is encrypted
            kwargs.pop(ignored, None)
        kwargs = await super().pre_launch(**kwargs)
        site = load_site(self.config)
        profile = site.profile(str(self.profile))
        self._connection = open_connection(profile.place, site=site)
        command = self._command(arguments, profile, local=isinstance(self._connection.settings, LocalSettings))
        self._spec = self._make_spec(profile, command, kwargs)
        return {**kwargs, "cmd": command}

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Submit and wait, or take up what lives under this id; again in the life of a Workload: restart in place."""
        if self._kernel is not None and not self._kernel.ended:
            kernel = self._kernel
            await self._on_loop(lambda _: kernel.spawn(command=cmd, variables=self._spec.environment.variables))
        else:
            if (old := self._kernel) is not None:
                await self._on_loop(lambda _: old.aclose())
            progress = _Progress(self.log, self._spec.name)
            self._kernel = await self._on_loop(lambda s: s.kernels.launch(self._spec, secrets=self._keys, progress=progress))
            progress.done()
        self._has_process, self._expected = True, False
        self.connection_info = cast(KernelConnectionInfo, self._kernel.connection_info)
        self._forget_connection_file()
        return self.connection_info

    @property
    def has_process(self) -> bool:
        """Whether there is a kernel, alive or not yet waited for."""
        return self._has_process

    async def poll(self) -> int | None:
        """Return None while the kernel lives, else its exit code; no round trip."""
        if self._kernel is None:
            return 0
        code = self._kernel.exit_code
        if code is not None and not self._expected and not getattr(self.parent, "shutting_down", False):
            self._expected = True
            self.log.warning(f"GPU kernel {self._spec.name} died: {self._kernel.cause}")
        return code

    async def wait(self) -> int | None:
        """Wait for the kernel's death and return its exit code."""
        if self._kernel is None:
            return 0
        kernel = self._kernel
        code = await self._on_loop(lambda _: kernel.died())
        self._has_process = False
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel and what it started."""
        self._expected = self._expected or signum in (signal.SIGKILL, signal.SIGTERM)
        if self._kernel is not None and signum and self._kernel.exit_code is None:
            kernel = self._kernel
            await self._on_loop(lambda _: kernel.signal(signum))

    async def kill(self, restart: bool = False) -> None:
        """End the kernel at once. ``restart`` does not tell the truth here (jupyter_client #1061); `cleanup` is told it."""
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        """Ask the kernel to end."""
        await self.send_signal(signal.SIGTERM)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Take note that the kernel was asked to end."""
        self._expected = True

    async def cleanup(self, restart: bool = False) -> None:
        """End the Workload, so that the device is free; before a restart, keep it."""
        if restart or self._kernel is None:
            return
        kernel, self._kernel = self._kernel, None
        await self._on_loop(lambda services: services.kernels.end(kernel))

    def resolve_path(self, path: str) -> str | None:
        """Return a path as seen from the kernel's folder, where the kernel shares this machine's files."""
        found = Path(path).expanduser()
        folder = self._spec.environment.working_directory
        if not isinstance(self._connection.settings, LocalSettings) or folder is None:
            return None
        found = found if found.is_absolute() else (Path(folder) / found).resolve()
        return found.as_posix() if found.exists() else None

    # ---- how it is done

    async def _on_loop(self, fn: Callable[[Services], Awaitable[T]]) -> T:
        return await asyncio.wrap_future(self._connection.call(fn))

    def _command(self, arguments: list[str], profile: Profile, *, local: bool) -> list[str]:
        words = [*self.kernel_spec.argv, *arguments]
        if not words or not all(isinstance(word, str) for word in words):
            raise InvalidRequestError(f"kernelspec {self._spec_name()!r} has no command that could be run: its argv is {words!r}")
        interpreter = profile.environment.interpreter or (sys.executable if local else None)
        if interpreter and words[0] in _PLAIN_PYTHON:
            words[0] = interpreter
        if local and os.sep in words[0] and not Path(words[0]).exists():
            raise InvalidRequestError(
                f"kernelspec {self._spec_name()!r} starts {words[0]}, which does not exist; "
                f"remove it (jupyter kernelspec remove {self._spec_name()}) or make its environment again"
            )
        known = {"resource_dir": self.kernel_spec.resource_dir, "prefix": sys.prefix}
        return [re.sub(r"\{([A-Za-z0-9_]+)\}", lambda match: known.get(match[1], match[0]), word) for word in words]

    def _make_spec(self, profile: Profile, command: list[str], kwargs: Mapping[str, Any]) -> WorkloadSpec:
        options = self._options()
        try:
            resources = options.resources(str(self.profile), profile)
        except ValueError as error:
            raise InvalidRequestError(f"kernelspec {self._spec_name()!r}: {error}") from error
        local = isinstance(self._connection.settings, LocalSettings)
        changes: dict[str, Any] = {"variables": {**profile.environment.variables, **self._variables(kwargs["env"])}}
        if local:
            changes["working_directory"] = str(Path(kwargs.get("cwd") or ".").absolute())
        self._keys = self._make_keys(encrypted=not local)
        try:
            return kernel_request(
                str(self.profile),
                profile,
                id=self.kernel_id or str(uuid4()),
                name=self._name(kwargs["env"]),
                queue=options.queue or profile.queue,
                priority=profile.priority if options.priority is None else options.priority,
                resources=resources,
                environment=profile.environment.model_dump() | changes,
                command=tuple(command),
                ports=kernel_ports(loopback=not (local or self._can_encrypt())),
                secrets=tuple(self._keys),
                orphan_running_after_s=self._orphan_running_after_s(profile),
            )
        except ValidationError as error:
            raise InvalidRequestError(f"kernelspec {self._spec_name()!r}: {explain(error, 'kernel', WorkloadSpec)}") from error

    def _orphan_running_after_s(self, profile: Profile) -> float:
        # a server comes back for its kernels; papermill or a console that died never does
        has_server = isinstance(getattr(self.parent, "parent", None), MultiKernelManager)
        return profile.orphan_running_after_s if has_server else min(profile.orphan_running_after_s, _NOBODY_RETURNS_S)

    def _options(self) -> KernelOptions:
        given = {name: getattr(self, name) for name in ("accelerator", "gpus", "cpus", "memory", "queue", "priority")}
        try:
            return KernelOptions.model_validate(given)
        except ValidationError as error:
            raise InvalidRequestError(f"kernelspec {self._spec_name()!r}: {explain(error, 'config', KernelOptions)}") from error

    def _variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the kernelspec's variables and what the caller added; the server's own environment stays here."""
        if self._added is None:
            # once: a restart gets the environment of the first launch again, from which this process's own may have moved on
            self._added = {key for key, value in environment.items() if os.environ.get(key) != value}
        mine = self._added | set(self.kernel_spec.env)
        return {key: environment[key] for key in environment if key in mine and key.isidentifier()}  # no shell functions

    def _name(self, environment: Mapping[str, str]) -> str:
        return Path(environment.get("JPY_SESSION_NAME") or self._spec_name()).name[:1000] or self._spec_name()

    def _spec_name(self) -> str:
        return getattr(self.parent, "kernel_name", "") or object_name(self.kernel_spec.display_name or "kernel")

    def _can_encrypt(self) -> bool:
        supported = self.kernel_spec.metadata.get("supported_encryption", ())
        return "curve" in ([supported] if isinstance(supported, str) else supported)

    def _make_keys(self, *, encrypted: bool) -> dict[str, str]:
        # locally, sockets in a folder that nobody else can enter need no encryption, and are faster without
        keys = {"key": secrets.token_hex(32)}
        if encrypted and self._can_encrypt():
            public, secret = zmq.curve_keypair()
            keys |= {"curve_publickey": public.decode(), "curve_secretkey": secret.decode()}
        return keys

    def _forget_connection_file(self) -> None:
        # a killed server left one, and the manager trusts it more than us (jupyter_client 8.10, _reconcile_connection_info)
        path = getattr(self.parent, "connection_file", "")
        if path:
            Path(path).unlink(missing_ok=True)


class _Progress:
    """Tell in the application's log how a launch goes: at once where it waits, and again while it does."""

    def __init__(self, log: Any, name: str) -> None:
        self._log, self._name = log, name
        self._began = time.monotonic()
        self._said, self._said_at = "", 0.0

    def __call__(self, workload: Workload) -> None:
        status = workload.status
        if status.phase not in (Phase.QUEUED, Phase.STARTING):
            return
        why = status.reason.message if status.reason else ""
        place = f", number {status.position} in line" if status.position else ""
        words = f"GPU kernel {self._name}: {status.phase.value}{place}" + (f": {why}" if why else "")
        now = time.monotonic()
        waits = status.phase is Phase.QUEUED or now - self._began > _SAY_AFTER_S
        if waits and (words != self._said or now - self._said_at > _SAY_AGAIN_S):
            self._said, self._said_at = words, now
            self._log.warning(words)  # a console shows no less

    def done(self) -> None:
        if self._said:
            self._log.warning(f"GPU kernel {self._name}: ready after {time.monotonic() - self._began:.1f} s")
