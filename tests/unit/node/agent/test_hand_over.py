"""How long a successor waits for the kubelet's queue of pods before it takes over."""

from collections.abc import Callable, Iterable, Mapping
from typing import cast

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, HANDOVER_ANNOTATION, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.kube.errors import TooManyRequests
from gputile.kube.objects import Applied, WatchEvent
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import DeviceTable, ListedPod, Listing
from gputile.node.agent.hand_over import CLOSED_AT_MOST_S, HandOver
from gputile.node.agent.known_pods import remove_pod
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.gateway.link import State
from tests.fakes.agentcluster import NODE, FakeCluster, simple_pod
from tests.fakes.corebuilders import container

PODS = 20
MEMORY = {GPU_MEMORY: 1}


class QueueingKubelet:
    """A node's kubelet that has pods to admit, and an agent that is to take the node over.

    With each look at its list ``seconds`` pass, and it has admitted as many pods as ``admitted`` returns for the number
    of the look; it does not answer where that is None. ``time`` stands for all clocks. ``left`` is for how many seconds
    the node was closed at each look. Each pod asks for ``asks``, and has got what is ``given`` once it is admitted.
    """

    state = State(others=True)

    def __init__(
        self,
        seconds: float,
        admitted: Callable[[int], int | None],
        asks: Mapping[str, int] = MEMORY,
        given: Iterable[str] = MEMORY,
    ) -> None:
        self.time = 1_000_000.0
        self.left: list[float] = []
        self.cluster = FakeCluster()
        self._seconds, self._admitted = seconds, admitted
        pods = [simple_pod(f"p{i}", container(asks=asks)) for i in range(PODS)]
        self._pods = [self.cluster.create(pod, node=NODE) for pod in pods]
        self._given = {"main": {resource: frozenset({"GPU-0::0"}) for resource in given}}
        config = NodeConfig(
            Inventory((Gpu(0, "GPU-0", 81920),), mode="share", unit_mib=1024), EffectiveMode(Mode.SHARE, 1024)
        )
        self.agent = AllocationState(Configuration(), config, DeviceTable(), node=self.cluster.node)
        self.cluster.on_node = self._on_node
        link = cast(KubeletLink, self)
        self.hand_over = HandOver(self.cluster, link, self.agent, 0.0, self.clock, self.clock)

    def clock(self) -> float:
        return self.time

    async def list(self, within: float) -> Listing | None:
        self.time += self._seconds
        self.left.append(float(self.cluster.node.metadata.annotations[HANDOVER_ANNOTATION]) - self.time)
        admitted = self._admitted(len(self.left))
        pods = self._pods[: admitted or 0]
        return None if admitted is None else {p.key: ListedPod("default", p.metadata.name, self._given) for p in pods}

    def delete(self, number: int) -> None:
        """The watch says that a pod is gone."""
        remove_pod(self.agent.pods, self._pods[number])

    def _on_node(self, event: WatchEvent[Node]) -> None:
        if isinstance(event, Applied):
            self.agent.node = event.object


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputile.node.agent.hand_over.LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("gputile.node.agent.hand_over.RETRY_EVERY_S", 0.0)


@pytest.mark.anyio
@pytest.mark.requirement("G1")
async def test_a_slow_kubelet_is_waited_for_as_long_as_its_queue_gets_shorter() -> None:
    """A minute would be too short for a node of two cores that has 200 pods to admit: the rest would fail for good."""
    kubelet = QueueingKubelet(10.0, lambda look: look)
    await kubelet.hand_over.close()
    assert len(kubelet.left) == PODS
    assert min(kubelet.left) > 0.0
    assert kubelet.left[-1] > 10.0  # there is time to take over


@pytest.mark.anyio
@pytest.mark.requirement("G1", "G3")
@pytest.mark.parametrize(
    ("asks", "given"),
    [({"nvidia.com/mig-1g.10gb": 1}, ()), ({GPU_MEMORY: 1, GPU_CORE: 5}, MEMORY)],
    ids=["MIG instances", "compute, after memory"],
)
async def test_every_resource_is_waited_for(asks: Mapping[str, int], given: Iterable[str]) -> None:
    """The kubelet fails a pod for good that asks while nobody has the node."""
    lacking = QueueingKubelet(1.0, lambda look: PODS, asks, given)
    await lacking.hand_over.close()
    assert len(lacking.left) > 1
    served = QueueingKubelet(1.0, lambda look: PODS, asks, asks)
    await served.hand_over.close()
    assert len(served.left) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("call", ["patch_node", "bound_pods"])
async def test_a_request_that_fails_once_is_repeated(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older agent serves the node meanwhile. The watch has not reported the node yet either."""
    kubelet = QueueingKubelet(1.0, lambda look: look)
    kubelet.agent.node = None
    troubles = [TooManyRequests(429, "TooManyRequests", "later")]
    request = getattr(kubelet.cluster, call)

    async def answer(*arguments: object) -> object:
        if troubles:
            raise troubles.pop()
        return await request(*arguments)

    monkeypatch.setattr(kubelet.cluster, call, answer)
    await kubelet.hand_over.close()
    assert not troubles
    assert len(kubelet.left) == PODS


@pytest.mark.anyio
async def test_a_pod_that_is_never_admitted_is_not_waited_for() -> None:
    kubelet = QueueingKubelet(5.0, lambda look: min(look, PODS - 1))
    await kubelet.hand_over.close()
    assert PODS < len(kubelet.left) < PODS + 10


@pytest.mark.anyio
async def test_a_kubelet_that_does_not_answer_is_not_waited_for_without_end() -> None:
    kubelet = QueueingKubelet(5.0, lambda look: look if look < 5 else None)
    await kubelet.hand_over.close()
    assert 5 < len(kubelet.left) < PODS


@pytest.mark.anyio
async def test_a_pod_that_is_deleted_meanwhile_is_not_waited_for() -> None:
    kubelet = QueueingKubelet(5.0, lambda look: min(look, PODS - 1))
    kubelet.delete(PODS - 1)
    await kubelet.hand_over.close()
    assert len(kubelet.left) == PODS - 1


@pytest.mark.anyio
async def test_a_node_that_a_dead_agent_closed_is_opened_whatever_the_clock_says() -> None:
    """Its clock was hours ahead, as before the node's first look at a time server; nobody else opens the node."""
    kubelet = QueueingKubelet(0.0, lambda look: PODS)
    for closed_for, left in ((5 * 3600, 0.0), (CLOSED_AT_MOST_S, CLOSED_AT_MOST_S), (-1, 0.0)):
        until = str(int(kubelet.time + closed_for))
        node = Node(metadata=ObjectMeta(name=NODE, annotations={HANDOVER_ANNOTATION: until}))
        assert kubelet.hand_over.left(node) == left
