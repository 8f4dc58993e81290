"""How long a call of the kubelet waits for what it takes to answer it."""

from pathlib import Path
from typing import cast

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.node.agent.allocation import DeviceAllocator
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_ids import ListedPod, Listing, encode
from gputile.node.agent.device_table import DeviceTable
from gputile.node.agent.handler import FETCH_WITHIN_S, NEEDED_WITHIN_S, Lookup
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.gateway.link import State
from tests.fakes.agentcluster import FakeCluster, simple_pod
from tests.fakes.corebuilders import container
from tests.unit.node.agent.files.test_records import records_in


class SlowKubelet:
    """Lists nothing, or the same pods; ``waited`` is for how many seconds it was given each time."""

    state = State()
    settled = True

    def __init__(self, *pods: ListedPod) -> None:
        self.waited: list[float] = []
        self.answers = False
        self._listing = {pod.key: pod for pod in pods}

    async def list(self, within: float) -> Listing | None:
        self.waited.append(within)
        return self._listing if self.answers else None


def state_of(mode: Mode) -> AllocationState:
    gpus = tuple(Gpu(index, f"GPU-{index}", 8192) for index in range(2))
    config = NodeConfig(Inventory(gpus, mode=mode.value, unit_mib=1024), EffectiveMode(mode, 1024))
    return AllocationState(Configuration(), config, DeviceTable())


@pytest.mark.anyio
@pytest.mark.parametrize("pods", [1, 2])
async def test_the_list_is_waited_for_longer_where_nothing_else_tells_who_asks(tmp_path: Path, pods: int) -> None:
    state = state_of(Mode.CGPU)
    for name in ("a", "b")[:pods]:
        pod = known_pod(simple_pod(name, container(mem=2)), Configuration())
        state.pods[pod.key] = pod
    kubelet = SlowKubelet()
    lookup = Lookup(state, cast(KubeletLink, kubelet), records_in(tmp_path), FakeCluster(), "n")
    first = FETCH_WITHIN_S if pods == 1 else NEEDED_WITHIN_S
    assert await lookup.look(GPU_MEMORY, 2) is None
    assert await lookup.look(GPU_MEMORY, 2) is None  # it may be that it never answers
    kubelet.answers = True
    await lookup.look(GPU_MEMORY, 2)
    await lookup.look(GPU_MEMORY, 2)
    assert kubelet.waited == [first, FETCH_WITHIN_S, FETCH_WITHIN_S, first]


@pytest.mark.anyio
@pytest.mark.requirement("B1")
async def test_a_pod_that_is_read_in_the_middle_of_its_admission_stays_on_its_gpu(tmp_path: Path) -> None:
    """The API server was away when the kubelet asked for compute: nobody knew then which GPU is booked."""
    state, cluster, core = state_of(Mode.CORE_MEM), FakeCluster(), tuple(encode(1, slot) for slot in range(20))
    pod = cluster.create(simple_pod("a", container(mem=2, core=20)), node="n")
    DeviceAllocator(state, {pod.key: ListedPod("default", "a", {"main": {}})}, 0.0, 1).allocate(GPU_CORE, core)
    kubelet = SlowKubelet(ListedPod("default", "a", {"main": {GPU_CORE: frozenset(core)}}))
    kubelet.answers = True
    listing = await Lookup(state, cast(KubeletLink, kubelet), records_in(tmp_path), cluster, "n").look(GPU_MEMORY, 2)
    assert [devices.uid for devices in state.device_table] == [pod.metadata.uid]
    free = [encode(index, slot) for index in range(2) for slot in range(8)]
    assert DeviceAllocator(state, listing, 1.0).preferred(GPU_MEMORY, free, (), 2) == (encode(1, 0), encode(1, 1))
