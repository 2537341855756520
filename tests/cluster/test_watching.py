"""A watch goes on through what happens to the API server."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.backends.kubernetes import KubernetesBackend
from jupyter_gpu.errors import BackendUnavailableError, JupyterGpuError
from jupyter_gpu.schema import Phase
from tests.builders import a_workload, finished, log_of, program, reports, running, said, status_of, texts
from tests.cluster.plugin import Admin, eventually

pytestmark = pytest.mark.cluster


@pytest.fixture
def backend(kubernetes_backend: KubernetesBackend) -> KubernetesBackend:
    return kubernetes_backend


async def test_a_watch_survives_the_api_servers_death_and_shows_all_again(backend: Backend, rig: Any, admin: Admin) -> None:
    await backend.submit(a_workload("w-1"))
    await running(backend, "w-1")
    async with aclosing(backend.watch()) as steps:
        first = await anext(steps)
        assert first.complete
        await anyio.to_thread.run_sync(rig, "stop", "--kill", "kube-apiserver")
        try:
            with pytest.raises(BackendUnavailableError):
                await backend.submit(a_workload("w-2"))
        finally:
            await anyio.to_thread.run_sync(rig, "start", "kube-apiserver")
        with anyio.fail_after(60):
            await eventually(lambda: answers(admin), 60)
            await backend.submit(a_workload("w-2"))
            is_complete, seen = False, set[str]()
            while not (is_complete and seen >= {"w-1", "w-2"}):
                changes = await anext(steps)
                is_complete = is_complete or changes.complete
                seen = ({*()} if changes.complete else seen) | {workload.spec.id for workload in changes.workloads}
    assert (await status_of(backend, "w-1")).phase is Phase.RUNNING


async def answers(admin: Admin) -> bool:
    try:
        await admin.names("pods")
    except BackendUnavailableError:
        return False
    return True


async def test_a_version_that_is_too_old_means_to_list_again(backend: KubernetesBackend) -> None:
    async with aclosing(backend.watch()) as steps:
        assert (await anext(steps)).complete
        assert backend._reflector
        jobs = backend._reflector.jobs
        jobs._version = "1"  # what etcd has long forgotten
        expired = await until_error(jobs)
        assert expired == "ExpiredError"


async def until_error(mirror: Any) -> str:
    """Follow from the version it has, and return the name of the error."""
    try:
        with anyio.fail_after(10):
            await mirror._follow()
    except JupyterGpuError as error:
        return type(error).__name__
    return ""


async def test_an_expired_watch_goes_on_by_a_new_list(backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_gpu.backends.kubernetes.mirror import ExpiredError, Mirror

    plain, expired = Mirror._follow, []

    async def follow(self: Mirror) -> None:
        if "jobs" in self._kind and len(expired) < 2 and self.synced.is_set():
            expired.append(self._version)
            raise ExpiredError("too old resource version")
        with anyio.move_on_after(1):
            await plain(self)

    monkeypatch.setattr(Mirror, "_follow", follow)
    async with aclosing(backend.watch()) as steps:
        assert (await anext(steps)).complete
        await backend.submit(a_workload("w-1", command=program()))
        with anyio.fail_after(20):
            while not (await anext(steps)).complete:
                pass
    assert (await finished(backend, "w-1")).phase is Phase.SUCCEEDED


async def test_a_log_goes_on_over_a_broken_connection_without_losing_or_doubling_a_line(backend: Backend, rig: Any) -> None:
    await backend.submit(a_workload("w-1", command=program((), counts=400, pause_s=0.02)))
    await said(backend, "w-1", "line 20")
    lines: list[str] = []

    async def follow() -> None:
        lines.extend([line.text async for line in backend.logs("w-1", follow=True) if not line.report])

    with anyio.fail_after(90):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.sleep(1)
            await anyio.to_thread.run_sync(rig, "stop", "--kill", "kube-apiserver")
            await anyio.to_thread.run_sync(rig, "start", "kube-apiserver")
    assert lines == [f"line {number}" for number in range(1, 401)]


async def test_a_log_is_taken_up_in_the_middle_of_a_second(backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_gpu.backends.kubernetes.client import Client

    plain, cut = Client.stream, []

    def stream(self: Client, path: str, query: Any, **options: Any) -> Any:
        opened = plain(self, path, query, **options)
        if path.endswith("/log") and len(cut) < 5:
            cut.append(path)
            return Cut(opened, 3000 + 500 * len(cut))
        return opened

    monkeypatch.setattr(Client, "stream", stream)
    await backend.submit(a_workload("w-1", command=program((), counts=3000)))
    lines = await log_of(backend, "w-1", follow=True)
    assert texts(lines) == [f"line {number}" for number in range(1, 3001)]
    assert len(reports(lines, "end")) == 1
    assert len(cut) == 5


class Cut:
    """A stream that breaks after so many bytes."""

    def __init__(self, opened: Any, limit: int) -> None:
        self._opened, self._limit = opened, limit

    async def __aenter__(self) -> Any:
        return self._some(await self._opened.__aenter__())

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._opened.__aexit__(*exc)

    async def _some(self, data: Any) -> Any:
        async for chunk in data:
            yield chunk[: self._limit]
            self._limit -= len(chunk)
            if self._limit <= 0:
                raise BackendUnavailableError("cut off by the test")
