"""What the state of an agent takes in of its pods, its node, its configuration and its own files."""

import msgspec

from gputile.api.config.trust_groups import Trust
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta, Pod
from gputile.api.well_known import Mode
from gputile.core.devices.inventory import Inventory
from gputile.node.agent.decisions.events import (
    CheckpointSaved,
    Configured,
    NodeWatched,
    PodAnswered,
    PodGone,
    PodsRelisted,
    PodWatched,
    TakenOver,
    take_in,
)
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.node_config import EffectiveMode, NodeConfig
from tests.corebuilders import pod


def state() -> AllocationState:
    return AllocationState(Configuration(), NodeConfig(Inventory(()), EffectiveMode(Mode.SHARE, 1024)), DeviceTable())


def version(of: Pod, number: int) -> Pod:
    return msgspec.structs.replace(of, metadata=msgspec.structs.replace(of.metadata, resource_version=str(number)))


def test_a_pod_is_known_until_the_watch_says_that_it_is_gone() -> None:
    here, asking = state(), version(pod("p", mem=1), 1)
    assert take_in(here, PodWatched(asking))
    assert not take_in(here, PodWatched(version(asking, 2))), "nothing that matters has changed"
    take_in(here, PodGone(asking))
    assert not take_in(here, PodAnswered(asking)), "an answer that comes late does not bring it back"
    assert not here.pods


def test_a_list_is_all_there_is() -> None:
    here, one, other = state(), version(pod("one", mem=1), 1), version(pod("other", mem=1), 2)
    take_in(here, PodWatched(one))
    take_in(here, PodsRelisted([other]))
    assert list(here.pods) == [other.key]


def test_a_node_is_news_once() -> None:
    here, node = state(), Node(metadata=ObjectMeta(name="n", resource_version="1"))
    later = Node(metadata=ObjectMeta(name="n", resource_version="2"))
    assert take_in(here, NodeWatched(node))
    assert not take_in(here, NodeWatched(later))
    assert here.node is later
    assert take_in(here, NodeWatched(None))


def test_pods_are_read_again_by_another_configuration() -> None:
    here, asking = state(), pod("p", mem=1)
    take_in(here, PodWatched(asking))
    take_in(here, Configured(Configuration(trust=Trust(by="cluster"))))
    assert here.pods[asking.key].trust_group == "*"


def test_a_checkpoint_is_due_until_it_is_written() -> None:
    here = state()
    take_in(here, CheckpointSaved(written=False))
    assert here.advertised.unsaved
    take_in(here, CheckpointSaved(written=True))
    assert not here.advertised.unsaved


def test_an_agent_goes_on_with_what_the_one_before_it_has_written() -> None:
    here, mode = state(), EffectiveMode(Mode.CGPU, 256)
    take_in(here, TakenOver((), frozenset(), mode, ("nvidia.com/gpu",)))
    assert (here.advertised.effective_mode, here.advertised.registered) == (mode, ("nvidia.com/gpu",))
