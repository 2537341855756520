"""Death tells the truth: who ended a pod, and of what it died."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import anyio
import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.schema import KubernetesSettings, Phase, Resources, WorkloadStatus
from tests.builders import a_workload, finished, log_of, program, reports, running, said, status_of, texts, until
from tests.cluster.plugin import Admin

pytestmark = pytest.mark.cluster

EATS = ("python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))")


@pytest.fixture
def backend(kubernetes_backend: Backend) -> Backend:
    return kubernetes_backend


async def end_of(backend: Backend) -> tuple[Phase, str, str]:
    status = await finished(backend, "w-1")
    assert status.reason
    return status.phase, status.reason.code, status.reason.message


async def test_what_needs_more_memory_than_it_may_have_is_told_so(backend: Backend) -> None:
    await backend.submit(a_workload(command=EATS, resources=Resources(cpus=0.1, memory_bytes="64MiB")))
    status = await finished(backend, "w-1")
    assert status.reason
    assert (status.phase, status.reason.code) == (Phase.FAILED, "end.out_of_memory")
    assert "64 MiB" in status.reason.message
    assert status.reason.facts["limit_bytes"] == 64 << 20


async def test_a_pod_that_somebody_deletes_is_lost_and_not_cancelled(backend: Backend, admin: Admin) -> None:
    await backend.submit(a_workload())
    await said(backend, "w-1", "hello")
    (pod,) = await admin.names("pods")
    await admin.delete("pods", pod)
    phase, code, message = await end_of(backend)
    assert (phase, code) == (Phase.FAILED, "end.lost")
    assert "deleted" in message or "gone" in message


async def test_a_pod_that_is_evicted_says_so(backend: Backend, admin: Admin) -> None:
    await backend.submit(a_workload())
    await said(backend, "w-1", "hello")
    (pod,) = await admin.names("pods")
    await admin.create(f"/api/v1/namespaces/{{namespace}}/pods/{pod}/eviction", "policy/v1/Eviction", pod)
    phase, code, message = await end_of(backend)
    assert (phase, code) == (Phase.FAILED, "end.evicted")
    assert "evicted" in message


async def test_a_queued_pod_that_somebody_deletes_ends_its_workload(backend: Backend, admin: Admin) -> None:
    await backend.submit(a_workload("w-0", gpus=2))
    await running(backend, "w-0")
    await backend.submit(a_workload("w-1", gpus=1))

    async def pod_of_w1() -> str | None:
        return next((name for name in await admin.names("pods") if name.startswith("w-1")), None)

    from tests.cluster.plugin import eventually

    await admin.delete("pods", await eventually(pod_of_w1))
    phase, code, _ = await end_of(backend)
    assert (phase, code) == (Phase.FAILED, "end.lost")


async def test_each_replica_knows_its_rank_and_has_a_log_of_its_own(backend: Backend) -> None:
    code = "import json, os; print('rank', os.environ['JOB_COMPLETION_INDEX'])"
    await backend.submit(a_workload("w-1", replicas=3, command=("python3", "-c", code)))
    status = await finished(backend, "w-1")
    assert status.phase is Phase.SUCCEEDED
    assert [replica.rank for replica in status.replicas] == [0, 1, 2]
    for rank in range(3):
        assert texts(await log_of(backend, "w-1", replica=rank)) == [f"rank {rank}"]
    lines = await log_of(backend, "w-1", follow=True)
    assert sorted(texts(lines)) == ["rank 0", "rank 1", "rank 2"]
    assert sorted(line.replica for line in lines if line.report and line.report["report"] == "end") == [0, 1, 2]


async def test_one_replica_that_fails_ends_all_and_is_the_reason(backend: Backend) -> None:
    code = "import os, sys, time; time.sleep(2); sys.exit(7) if os.environ['JOB_COMPLETION_INDEX'] == '1' else time.sleep(600)"
    await backend.submit(a_workload("w-1", replicas=2, command=("python3", "-c", code), grace_s=1))
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.facts["exit_code"] == 7
    assert status.replicas[1].reason == status.reason


async def test_half_a_gang_does_not_wait_for_ever(backend: Backend) -> None:
    await backend.submit(a_workload("w-0", gpus=1))
    await running(backend, "w-0")
    await backend.submit(a_workload("w-1", gpus=1, replicas=2, start_timeout_s=3))
    status = await finished(backend, "w-1")
    assert status.reason
    assert (status.phase, status.reason.code) == (Phase.FAILED, "start.timeout")
    assert "Insufficient nvidia.com/gpu" in status.reason.message


async def test_what_was_cancelled_keeps_its_log(backend: Backend) -> None:
    await backend.submit(a_workload("w-1", command=program(("precious",), seconds=600)))
    await said(backend, "w-1", "precious")
    await backend.cancel("w-1")
    await finished(backend, "w-1")
    lines = await log_of(backend, "w-1")
    assert texts(lines) == ["precious"]
    (end,) = reports(lines, "end")
    assert end["code"] == "end.cancelled"


HOLDER = Path(__file__).parents[1] / "contract" / "holder.py"


async def test_a_queued_workload_whose_client_was_killed_ends_as_orphaned(
    backend: Backend, kubernetes_settings: KubernetesSettings
) -> None:
    await backend.submit(a_workload("w-0", gpus=2))
    await running(backend, "w-0")
    await backend.submit(a_workload("w-1", gpus=1, orphan_after_s=4))
    settings = kubernetes_settings.model_dump_json()
    async with await anyio.open_process([sys.executable, str(HOLDER), settings, "w-1"], stderr=None) as client:
        assert client.stdout
        assert (await client.stdout.receive()).strip() == b"held"
        held = await until(backend, lambda shown: shown["w-1"].status)
        await anyio.sleep(6)  # longer than orphan_after_s, and it is held
        await backend.tend(held.created.now(tz=held.created.tzinfo))
        assert (await status_of(backend, "w-1")).phase is Phase.QUEUED
        client.send_signal(signal.SIGKILL)
    status: WorkloadStatus = await finished(backend, "w-1")
    assert status.reason
    assert (status.phase, status.reason.code) == (Phase.FAILED, "end.orphaned")
    assert (await status_of(backend, "w-0")).phase is Phase.RUNNING
