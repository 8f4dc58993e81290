"""What keeps event loops free at size: looks that do not grow, and objects that nobody has to walk."""

import gc

import msgspec

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import GPU_MEMORY
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.kube_predicates.predicates import Predicates
from gputile.kube.objects import Applied, Replaced
from tests.costs.calls import calls
from tests.fakes.corebuilders import gpu_node
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.test_gang_planner import member
from tests.unit.tools.simulator.builders import node, pod


def nodes(count: int) -> list[Node]:
    amounts = {"cpu": "99", "pods": "99", GPU_MEMORY: "999"}
    return [gpu_node(f"n{i}", mode="cgpu", sizes=[4096] * 8, allocatable=amounts) for i in range(count)]


def test_a_question_about_one_node_looks_at_one_node() -> None:
    asked = {}
    for count in (4, 400):
        predicates = Predicates([node(f"n{i}", {"zone": "a"}) for i in range(count)])
        asking = pod("nodeSelector: {zone: a}")
        asked[count] = calls(lambda: predicates.reason(asking, "n1"))  # noqa: B023 - called at once
    assert asked[4] == asked[400]


def test_the_collector_walks_no_pod_of_the_cluster() -> None:
    full = pod(
        "{tolerations: [{key: k, operator: Exists}], initContainers: [{name: i}], "
        "containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: 1}}}], "
        "topologySpreadConstraints: [{topologyKey: zone, labelSelector: {matchLabels: {app: x}}}]}",
        labels={"app": "x"},
    )
    full = msgspec.structs.replace(full, spec=msgspec.structs.replace(full.spec, node_name="n1"))
    text = msgspec.json.encode(full)
    view = ClusterState(Configuration(admission=AdmissionConfiguration(gangs=True)))
    at_once(view.node_event(Replaced(nodes(4))))
    gc.collect()
    before = len(gc.get_objects())
    pods = []
    for number in range(1000):
        each = msgspec.json.decode(text, type=Pod)
        each.metadata.uid = each.metadata.name = str(number)
        pods.append(each)
    at_once(view.pod_event(Replaced(pods)))
    assert len(list(view.ledger.bookings())) == 1000
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_bookings_that_differ_in_their_version_only_are_equal() -> None:
    view = ClusterState(Configuration(admission=AdmissionConfiguration(gangs=True)))
    at_once(view.node_event(Replaced(nodes(1))))
    at_once(view.pod_event(Applied(member("g", 0, 1, node="n0"))))
    booking = next(view.ledger.bookings())
    assert msgspec.structs.replace(booking, version="9") == booking
    assert hash(msgspec.structs.replace(booking, version="9")) == hash(booking)
    assert msgspec.structs.replace(booking, host=HostResources(9, 9)) != booking
    assert booking != "a booking"
