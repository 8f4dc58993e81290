"""Who is asking: by the kubelet's list, and what is remembered."""

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, PodStatus
from gputile.api.well_known import GPU_CORE, GPU_MEMORY
from gputile.core.devices.request import Phase
from gputile.node.agent.container_matcher import candidates, unlisted_candidates, worth_asking
from gputile.node.agent.device_ids import ListedPod
from gputile.node.agent.device_table import DeviceTable
from gputile.node.agent.known_pods import KnownPod, known_pod
from gputile.node.agent.pod_devices import ContainerDevices, PodDevices
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container


def known(
    name: str, *containers: Container, init: tuple[Container, ...] = (), phase: str = "", uid: str = ""
) -> KnownPod:
    pod = simple_pod(name, *containers, init=init)
    meta = msgspec.structs.replace(pod.metadata, uid=uid or f"uid-{name}")
    return known_pod(msgspec.structs.replace(pod, metadata=meta, status=PodStatus(phase=phase)), Configuration())


def listed(name: str, **containers: dict[str, list[str]]) -> ListedPod:
    found = {c: {resource: frozenset(ids) for resource, ids in given.items()} for c, given in containers.items()}
    return ListedPod("default", name, found)


def book(*pods: KnownPod) -> dict[str, KnownPod]:
    return {pod.key: pod for pod in pods}


def listing(*pods: ListedPod) -> dict[str, ListedPod]:
    return {pod.key: pod for pod in pods}


def holding(pod: KnownPod, *devices: ContainerDevices) -> PodDevices:
    return PodDevices(pod.uid, "default", pod.pod.metadata.name, 1024, "share", "default", 0, devices)


IDS = {GPU_MEMORY: ["g0-00000", "g0-00001"]}


def test_the_pod_that_lacks_its_devices_is_asking() -> None:
    a, b = known("a", container(mem=2)), known("b", container(mem=2))
    shown = listing(listed("a", main=IDS), listed("b", main={}))
    found = candidates(shown, book(a, b), DeviceTable(), GPU_MEMORY, 2)
    assert [(c.key, c.container, c.sure) for c in found] == [("default/b", "main", True)]
    assert worth_asking(found) == []


def test_containers_are_asked_for_in_the_order_of_the_specification() -> None:
    pod = known("a", container("one", mem=2), container("two", mem=2), container("big", mem=5))
    shown = listing(listed("a", one=IDS, two={}, big={}))
    assert candidates(shown, book(pod), DeviceTable(), GPU_MEMORY, 2)[0].container == "two"
    assert candidates(shown, book(pod), DeviceTable(), GPU_MEMORY, 5)[0].container == "big"


def test_an_init_container_had_its_turn_if_it_is_remembered() -> None:
    pod = known("a", container(mem=2), init=(container("init", mem=2),))
    shown = listing(listed("a", main={}))
    assert candidates(shown, book(pod), DeviceTable(), GPU_MEMORY, 2)[0].container == "init"
    held = DeviceTable([holding(pod, ContainerDevices("init", Phase.INIT, GPU_MEMORY, ("g0-00000", "g0-00001")))])
    assert candidates(shown, book(pod), held, GPU_MEMORY, 2)[0].container == "main"


def test_each_resource_of_a_container_has_its_own_turn() -> None:
    pod = known("a", container(mem=2, core=10))
    shown = listing(listed("a", main=IDS))
    assert candidates(shown, book(pod), DeviceTable(), GPU_CORE, 10)[0].container == "main"
    assert candidates(shown, book(pod), DeviceTable(), GPU_MEMORY, 2) == []


def test_a_pod_that_runs_without_devices_does_not_stand_in_the_way() -> None:
    bare, new = known("bare", container(mem=2), phase="Running"), known("new", container(mem=2))
    shown = listing(listed("bare", main={}), listed("new", main={}))
    assert candidates(shown, book(bare, new), DeviceTable(), GPU_MEMORY, 2)[0].key == "default/new"


def test_a_container_that_was_started_is_not_meant_while_another_could_be() -> None:
    """A kubelet that has forgotten a running container's devices leaves it alone, and asks for the next one."""
    pod = known("a", container("one", mem=2), container("two", mem=2))
    shown = listing(listed("a", one={}, two={}))
    ids = ("g0-00000", "g0-00001")
    for held in ([], [holding(pod, ContainerDevices("one", Phase.APP, GPU_MEMORY, ids, "uid-a-one"))]):
        found = candidates(shown, book(pod), DeviceTable(held, ["uid-a-one"]), GPU_MEMORY, 2)
        assert [(c.container, c.sure) for c in found] == [("two", True)]
        both = DeviceTable(held, ["uid-a-one", "uid-a-two"])
        (last,) = candidates(shown, book(pod), both, GPU_MEMORY, 2)
        assert (last.container, last.sure) == ("", False), "it may be either"


def test_what_does_not_fit_the_known_pod_may_be_the_next_of_its_name() -> None:
    pod, plain = known("a", container(mem=2)), known("plain", container())
    shown = listing(listed("a", main={}), listed("plain", main={}))
    found = candidates(shown, book(pod, plain), DeviceTable(), GPU_MEMORY, 7)
    assert not any(c.known for c in found)
    assert worth_asking(found) == ["default/a", "default/plain"]


def test_a_pod_that_nobody_knows_is_a_static_one_or_news() -> None:
    found = candidates(listing(listed("new", main={})), {}, DeviceTable(), GPU_MEMORY, 2)
    assert [(c.key, c.container, c.pod) for c in found] == [("default/new", "main", None)]
    assert worth_asking(found) == ["default/new"]


def test_without_a_list_only_a_single_pod_can_be_meant() -> None:
    a, b = known("a", container(mem=2)), known("b", container(mem=2))
    assert [c.key for c in unlisted_candidates(book(a), DeviceTable(), GPU_MEMORY, 2)] == ["default/a"]
    assert unlisted_candidates(book(a, b), DeviceTable(), GPU_MEMORY, 2) == []


@pytest.mark.requirement("B1")
def test_an_init_container_that_nobody_remembers_does_not_ask_once_a_later_container_has_devices() -> None:
    """The kubelet does not list it, so for ever after it would seem to lack its devices."""
    first = known("a", container(mem=2), init=(container("init", mem=2),))
    second = known("b", container(mem=2))
    shown = listing(listed("a", main=IDS), listed("b", main={}))
    found = candidates(shown, book(first, second), DeviceTable(), GPU_MEMORY, 2, first.uid)
    assert [(c.key, c.container) for c in found] == [("default/b", "main")]


def test_without_a_list_the_other_resource_of_a_container_is_asked_for_next() -> None:
    """Many pods ask for as much; the kubelet takes up none of them before it is done with a container."""
    pods = [known(name, container(mem=2, core=10)) for name in ("a", "b", "c")]
    main = ContainerDevices("main", Phase.APP, GPU_MEMORY, ("g0-00000", "g0-00001"))
    held = DeviceTable([holding(pods[1], main)])
    (found,) = unlisted_candidates(book(*pods), held, GPU_CORE, 10, last_uid="uid-b")
    assert (found.key, found.container, found.sure) == ("default/b", "main", True)
    assert unlisted_candidates(book(*pods), held, GPU_CORE, 10, last_uid="uid-a") == []
    assert unlisted_candidates(book(*pods), held, GPU_MEMORY, 2, last_uid="uid-b") == []
