"""How long a call of the kubelet waits for what it takes to answer it."""

from typing import cast

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.node.agent.advertise.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.allocate.allocation_state import AllocationState
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.known_pods import known_pod
from gputile.node.agent.allocate.lookup import FETCH_WITHIN_S, NEEDED_WITHIN_S, Lookup
from gputile.node.agent.kubelet_link import KubeletLink
from gputile.node.agent.reconcile.listing import Listing
from gputile.node.gateway.messages import State
from tests.corebuilders import container
from tests.fakes.agentcluster import FakeCluster, simple_pod


class SlowKubelet:
    """Lists nothing, or no pods; ``waited`` is for how many seconds it was given each time."""

    state = State()
    settled = True

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.answers = False

    async def list(self, within: float) -> Listing | None:
        self.waited.append(within)
        return {} if self.answers else None


@pytest.mark.anyio
@pytest.mark.parametrize("pods", [1, 2])
async def test_the_list_is_waited_for_longer_where_nothing_else_tells_who_asks(pods: int) -> None:
    config = NodeConfig(Inventory((Gpu(0, "GPU-0", 8192),), mode="cgpu", unit_mib=1024), EffectiveMode(Mode.CGPU, 1024))
    state = AllocationState(Configuration(), config, DeviceTable())
    for name in ("a", "b")[:pods]:
        pod = known_pod(simple_pod(name, container(mem=2)), Configuration())
        state.pods[pod.key] = pod
    kubelet = SlowKubelet()
    lookup = Lookup(state, cast(KubeletLink, kubelet), FakeCluster(), "n")
    first = FETCH_WITHIN_S if pods == 1 else NEEDED_WITHIN_S
    assert await lookup.look(GPU_MEMORY, 2) is None
    assert await lookup.look(GPU_MEMORY, 2) is None  # it may be that it never answers
    kubelet.answers = True
    await lookup.look(GPU_MEMORY, 2)
    await lookup.look(GPU_MEMORY, 2)
    assert kubelet.waited == [first, FETCH_WITHIN_S, FETCH_WITHIN_S, first]
