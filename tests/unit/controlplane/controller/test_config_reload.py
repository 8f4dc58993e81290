"""One controller follows another when the configuration changes."""

import asyncio
import gc

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.controlplane.config_reload import ConfigReloader
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.controller import Controller, ControllerSettings
from gputile.kube.client import Connection
from gputile.kube.config import Access
from gputile.kube.credentials import FixedCredentials
from tests.fakes.apiserver import until

pytestmark = pytest.mark.requirement("U9", "B5")


def _states() -> int:
    return sum(isinstance(each, ClusterState) for each in gc.get_objects())


@pytest.mark.anyio
async def test_the_cluster_that_the_one_before_has_seen_is_not_kept() -> None:
    """Although what a whole list brought was taken out of garbage collection (which ``get_objects`` does not list)."""

    gc.unfreeze()  # those that a test before has left, too
    gc.collect()
    before = _states()
    async with Connection(Access("http://127.0.0.1:1", FixedCredentials(None, None))) as connection:
        built: list[Configuration] = []

        def build(configuration: Configuration) -> Controller:
            built.append(configuration)
            gc.freeze()
            return Controller(connection, configuration, ControllerSettings("default", "controller", "me"))

        reloader = ConfigReloader(build, Configuration())
        work = asyncio.create_task(reloader.run())
        for number in range(1, 5):
            await until(lambda: len(built) == number, 60)  # noqa: B023 - awaited here
            reloader.take(Configuration())
        reloader.stop()
        await work
    gc.unfreeze()
    assert _states() == before
