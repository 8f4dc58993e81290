"""One controller follows another when the configuration changes."""

import asyncio
import gc

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.controller import ControllerSettings, _serve_one
from gputile.controlplane.controller.monitoring import Monitoring
from gputile.kube.connection import Connection
from gputile.kube.credentials import FixedCredentials
from gputile.kube.kubeconfig import Access

pytestmark = pytest.mark.requirement("U9", "B5")


def _states() -> int:
    return sum(isinstance(each, ClusterState) for each in gc.get_objects())


def test_the_cluster_that_the_one_before_has_seen_is_not_kept() -> None:
    """Although what a whole list brought was taken out of garbage collection (which ``get_objects`` does not list)."""

    async def scene() -> None:
        ended, monitoring = asyncio.Event(), Monitoring()
        ended.set()
        async with Connection(Access("http://127.0.0.1:1", FixedCredentials(None, None))) as connection:
            for _ in range(4):
                settings = ControllerSettings("default", "controller", "me")
                await _serve_one(connection, Configuration(), settings, monitoring, ended)
                gc.freeze()

    gc.collect()
    before = _states()
    asyncio.run(scene())
    gc.unfreeze()
    assert _states() - before <= 1, "the one of the last controller, whose numbers are still shown"
