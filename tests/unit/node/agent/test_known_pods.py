"""The pods of the node, and the node: what is news of them, and what only has another version."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta, Pod
from gputile.api.well_known import Mode
from gputile.core.devices.inventory import Inventory
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.device_table import DeviceTable
from gputile.node.agent.known_pods import PodCache, answered_pod, apply_pod, read_again, remove_pod, replace_pods
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container

CONFIGURATION = Configuration(gpu_memory_unit="1024MiB")


def version(pod: Pod, number: int, **metadata: object) -> Pod:
    changed = msgspec.structs.replace(pod.metadata, resource_version=str(number), **metadata)
    return msgspec.structs.replace(pod, metadata=changed)


POD = version(simple_pod("p", container(mem=3)), 7)


@pytest.fixture
def book() -> PodCache:
    found = PodCache()
    assert apply_pod(found, POD, CONFIGURATION)
    return found


def test_another_version_alone_is_no_news_but_is_remembered(book: PodCache) -> None:
    """A correction is written for just the version that was judged."""
    assert not apply_pod(book, version(POD, 8), CONFIGURATION)
    assert book[POD.key].pod.metadata.resource_version == "8"


@pytest.mark.parametrize(
    "changed",
    [
        version(POD, 8, labels={"a": "b"}),
        version(POD, 8, annotations={"gputile.io/allocation": "?"}),
        version(POD, 8, deletion_timestamp="2026-01-01T00:00:00Z"),
        version(POD, 8, uid="another"),
        msgspec.structs.replace(version(POD, 8), status=msgspec.structs.replace(POD.status, phase="Succeeded")),
        msgspec.structs.replace(version(POD, 8), spec=msgspec.structs.replace(POD.spec, priority=5)),
    ],
)
def test_what_is_news(book: PodCache, changed: Pod) -> None:
    assert apply_pod(book, changed, CONFIGURATION)
    assert book[POD.key].pod == changed


def test_what_is_older_counts_for_nothing(book: PodCache) -> None:
    assert not apply_pod(book, version(POD, 6, labels={"a": "b"}), CONFIGURATION)
    assert book[POD.key].pod == POD


@pytest.mark.requirement("U5")
def test_another_configuration_judges_pods_that_have_not_changed(book: PodCache) -> None:
    """Amounts are absolute in the request, whatever the unit is now."""
    read_again(book, Configuration(gpu_memory_unit="128MiB"))
    request = book[POD.key].request
    assert request is not None
    assert request.unit_mib == 128


def test_a_list_replaces_and_a_deletion_takes_only_its_own(book: PodCache) -> None:
    other = version(simple_pod("q", container(mem=1)), 9)
    replace_pods(book, [other], CONFIGURATION, {POD.metadata.uid})
    assert book.keys() == {other.key, POD.key}, "it could not be read, but it is there"
    replace_pods(book, [other], CONFIGURATION)
    assert book.keys() == {other.key}
    remove_pod(book, version(other, 10, uid="another"))
    assert book.keys() == {other.key}
    remove_pod(book, other)
    assert not book


def test_an_answer_that_comes_after_the_word_of_its_end_brings_no_pod_back(book: PodCache) -> None:
    """The watch says nothing of it any more, so that it would stay for ever, and with it what it held."""
    remove_pod(book, version(POD, 9))
    assert not answered_pod(book, version(POD, 8, labels={"a": "b"}), CONFIGURATION)
    assert not book
    assert answered_pod(book, version(POD, 3, uid="the next of its name"), CONFIGURATION)


def test_a_list_that_is_older_than_a_reading_says_nothing_of_what_was_read(book: PodCache) -> None:
    young = version(simple_pod("young", container(mem=1)), 20, uid="young")
    assert answered_pod(book, young, CONFIGURATION)
    replace_pods(book, [POD], CONFIGURATION)
    assert answered_pod(book, young, CONFIGURATION)
    assert apply_pod(book, version(young, 21, labels={"a": "b"}), CONFIGURATION)
    replace_pods(book, [POD], CONFIGURATION)
    assert not answered_pod(book, young, CONFIGURATION), "the watch had told of it, and a list is never older than that"


def test_a_node_is_news_once() -> None:
    config = NodeConfig(Inventory(()), EffectiveMode(Mode.SHARE, 1024))
    here, node = (
        AllocationState(Configuration(), config, DeviceTable()),
        Node(metadata=ObjectMeta(name="n", resource_version="1")),
    )
    later = Node(metadata=ObjectMeta(name="n", resource_version="2"))
    assert here.apply_node(node)
    assert not here.apply_node(later)
    assert here.node is later
    assert here.apply_node(None)
