"""What keeps a pod from starting is told in words, and what can't heal is ended within seconds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from jupyter_gpu.backends.base import Backend
from jupyter_gpu.schema import Phase, Reason, Workload
from tests.builders import a_kernel, a_workload, finished, program, running, status_of, until
from tests.cluster.plugin import NO_PYTHON_IMAGE, Admin

pytestmark = pytest.mark.cluster


@pytest.fixture
def backend(kubernetes_backend: Backend) -> Backend:
    return kubernetes_backend


def in_image(image: str, **changes):
    spec = a_workload(**changes)
    return spec.model_copy(update={"environment": spec.environment.model_copy(update={"image": image})})


async def reason_of(backend: Backend, code: str, words: str = "") -> Reason:
    """Wait until this is the reason of w-1, and return it."""

    def reason(workloads: Mapping[str, Workload]) -> Reason | None:
        reason = workloads["w-1"].status.reason if "w-1" in workloads else None
        return reason if reason and reason.code == code and words in reason.message else None

    return await until(backend, reason)


@pytest.mark.parametrize(
    "image",
    [
        "localhost/there-is-none:1",
        "localhost/UPPER:1",
        pytest.param("registry.invalid/none:1", marks=pytest.mark.slow),  # the name server does not answer at first
    ],
)
async def test_an_image_that_is_not_there_ends_it(backend: Backend, image: str) -> None:
    await backend.submit(in_image(image))
    status = await until(
        backend, lambda shown: s if "w-1" in shown and (s := shown["w-1"].status).phase.is_final else None, deadline_s=60
    )
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "start.image_pull"
    assert image in status.reason.message
    assert status.reason.facts["image"] == image


@pytest.mark.skipif(not NO_PYTHON_IMAGE, reason="JUPYTER_GPU_TEST_NO_PYTHON_IMAGE names no image")
async def test_an_image_without_python_ends_it_and_says_so(backend: Backend) -> None:
    await backend.submit(in_image(NO_PYTHON_IMAGE))
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "start.no_python"
    assert "this image has no python3" in status.reason.message
    assert NO_PYTHON_IMAGE in status.reason.message


async def test_a_command_that_is_not_there_ends_it(backend: Backend) -> None:
    await backend.submit(a_workload(command=("there-is-no-such-program",)))
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "start.command"
    assert "there-is-no-such-program" in status.reason.message


async def test_what_cannot_be_mounted_is_named_and_ended_by_the_time_out(backend: Backend, admin: Admin) -> None:
    await backend.submit(a_workload("w-0", gpus=2))
    await running(backend, "w-0")
    await backend.submit(a_kernel("w-1", gpus=2, start_timeout_s=6), secrets={"key": "value"})
    await admin.delete("secrets", "w-1-1")
    await backend.cancel("w-0", grace_s=0)
    reason = await reason_of(backend, "start.mount")
    assert "w-1-1" in reason.message
    status = await finished(backend, "w-1")
    assert status.phase is Phase.FAILED
    assert status.reason
    assert status.reason.code == "start.timeout"
    assert "w-1-1" in status.reason.message


async def test_a_start_that_takes_too_long_is_ended(backend: Backend) -> None:
    await backend.submit(a_workload(start_timeout_s=0.001, command=program(seconds=0)))
    status = await finished(backend, "w-1")
    assert status.reason
    assert status.reason.code in ("start.timeout", "end.completed")  # a fast node may win


async def test_what_waits_for_devices_says_so_in_the_schedulers_words(backend: Backend) -> None:
    await backend.submit(a_workload("w-0", gpus=2))
    await running(backend, "w-0")
    await backend.submit(a_workload("w-1", gpus=1))
    reason = await reason_of(backend, "queue.busy", "Insufficient nvidia.com/gpu")
    assert reason.facts["asked"] == 1
    assert (await status_of(backend, "w-1")).phase is Phase.QUEUED


async def has_status(admin: Admin, quota: str) -> bool:
    return any(
        item["metadata"]["name"] == quota and item.get("status", {}).get("hard") for item in await admin.items("resourcequotas")
    )
