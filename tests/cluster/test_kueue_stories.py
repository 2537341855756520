"""The scheduling stories on the real Kueue: it decides as they tell."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import anyio
import pytest

from jupyter_gpu.errors import JupyterGpuError, NotFoundError
from jupyter_gpu.schema import KubernetesSettings
from tests.cluster.kueue import KUEUE, Player
from tests.cluster.plugin import Admin, AdminOf, eventually
from tests.stories import STORIES, Story

pytestmark = [pytest.mark.cluster, pytest.mark.kueue]

_AT_ONCE = 12
_KUEUES_OWN = [story for story in STORIES if story.not_kueue is None]


@pytest.fixture(scope="module")
def played(_namespaces: list[str]) -> Iterator[dict[str, BaseException | None]]:
    """What went wrong in each story, by its name. All are played at once, for they wait for the clock most of the time."""
    yield asyncio.run(_play_all(_namespaces))


async def _play_all(namespaces: list[str]) -> dict[str, BaseException | None]:
    results: dict[str, BaseException | None] = {}
    limit = anyio.CapacityLimiter(_AT_ONCE)
    async with AdminOf(KubernetesSettings()) as client:
        try:
            await client.call("GET", KUEUE, what="look for Kueue")
        except NotFoundError:
            pytest.skip("the cluster has no Kueue")

        async def play(story: Story) -> None:
            async with limit:
                admin = Admin(client, f"jg-test-{secrets.token_hex(4)}")
                namespaces.append(admin.namespace)
                await admin.create("/api/v1/namespaces", "v1/Namespace", admin.namespace)
                try:
                    await eventually(lambda: admin.names("serviceaccounts"))
                    await Player(admin, story).play()
                    results[story.name] = None
                except (AssertionError, JupyterGpuError) as error:
                    results[story.name] = error
                finally:
                    with anyio.CancelScope(shield=True):
                        await admin.call("DELETE", "/api/v1/namespaces/{namespace}")

        async with anyio.create_task_group() as group:
            for story in _KUEUES_OWN:
                group.start_soon(play, story)
    return results


@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", _KUEUES_OWN, ids=lambda story: story.name)
def test_kueue_decides_as_the_story_tells(story: Story, played: dict[str, BaseException | None]) -> None:
    if error := played[story.name]:
        raise error
