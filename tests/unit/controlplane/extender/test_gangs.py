"""What the extender answers about a pod of a gang that has no place: no node, and nothing is bound."""

import asyncio
import copy

import msgspec
import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import Pod
from gputile.api.webhooks import ExtenderArgs, ExtenderBindingArgs, ExtenderPreemptionArgs, MetaVictims
from gputile.api.well_known import GANG_NAME_LABEL, GANG_SIZE_LABEL, POD_GROUP_LABEL, RESERVATION_ANNOTATION
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.binder import Binder, BindError
from gputile.controlplane.extender.handlers import ExtenderHandlers
from gputile.core.devices.allocation import Allocation, Reservation, encode_reservation
from gputile.core.scheduling.placement_engine import PlacementEngine
from tests.fakes.corebuilders import gpu_node, ledger_of, pod, share
from tests.unit.controlplane.extender.cluster import Fate, ModelCluster

pytestmark = pytest.mark.requirement("M13")

NODES = ["a", "b"]


def member(name: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> Pod:
    """A pod whose gate is gone."""
    asking = pod(name, mem=1, annotations=annotations)
    return msgspec.structs.replace(asking, metadata=msgspec.structs.replace(asking.metadata, labels=labels))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "labels", [{GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "2"}, {POD_GROUP_LABEL: "g"}], ids=["labels", "PodGroup"]
)
@pytest.mark.parametrize("hold", [None, "", "{", '{"version":1}'])
async def test_a_pod_of_a_gang_without_a_place_goes_nowhere(labels: dict[str, str], hold: str | None) -> None:
    configuration = Configuration(admission=AdmissionConfiguration(gangs=True))
    ledger = ledger_of(*(gpu_node(name, mode="cgpu") for name in NODES), configuration=configuration)
    asking = member("p", labels, {RESERVATION_ANNOTATION: hold} if hold is not None else None)
    ledger.apply_pod(asking)
    cluster = ModelCluster(lambda: Fate.OK)
    cluster.add(asking)
    engine = PlacementEngine(ledger)
    verbs = ExtenderHandlers(
        engine,
        Binder(engine, cluster, lambda: 0.0, lambda: 1),
        lambda _: None,
        lambda: None,
        evictable=EvictablePods(lambda _: False),
    )

    found = verbs.filter(ExtenderArgs(pod=asking, node_names=NODES))
    assert found.node_names == []
    assert found.failed_and_unresolvable_nodes == dict.fromkeys(NODES, "gang g: no GPUs are reserved for the pod yet")

    args = ExtenderBindingArgs(pod_name="p", pod_namespace="default", pod_uid="p", node="a")
    assert "no GPUs are reserved" in (await verbs.bind(args)).error
    assert ledger.booking("p") is None

    offered = {"a": MetaVictims(pods=[], num_pdb_violations=0)}
    preempting = ExtenderPreemptionArgs(pod=asking, node_name_to_meta_victims=offered)
    assert (await verbs.preempt(preempting)).node_name_to_meta_victims == {}


# -- a plan begins with its first pod

GANGS = Configuration(admission=AdmissionConfiguration(gangs=True))
LABELS = {GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "2"}


class Bench:
    """A gang of two with places on node a: p1 is the plan's first pod. ``fates`` are those of the Bindings."""

    def __init__(self, *fates: Fate) -> None:
        script = iter(fates)
        self.cluster = ModelCluster(lambda: next(script, Fate.OK))
        self.ledger = ledger_of(gpu_node("a", mode="cgpu"), configuration=GANGS)
        self.now = 0.0
        self.binder = Binder(PlacementEngine(self.ledger), self.cluster, lambda: self.now, lambda: 1)
        self.pods: dict[str, Pod] = {}  # as the API server holds them
        for name in ("p1", "p2"):
            self.place(name, "g/1")
        self.hear()

    def place(self, name: str, plan: str) -> None:
        """Write a place, of which the extender has not heard."""
        shares = (share(f"GPU-a-{['p1', 'p2'].index(name)}", 1024),)
        allocation = Allocation(shares, {"main": shares}, 1024, mode="cgpu")
        hold = Reservation(plan, 2, 2, "a", 10**9, allocation, first=name == "p1")
        self.pods[name] = member(name, LABELS, {RESERVATION_ANNOTATION: encode_reservation(hold)})
        self.cluster.add(self.pods[name])

    def hear(self) -> None:
        for each in self.pods.values():
            self.ledger.apply_pod(copy.deepcopy(each))

    async def bind(self, name: str) -> str:
        """Return "" where the pod was bound, else why not."""
        asking = copy.deepcopy(self.pods[name])
        try:
            await self.binder.bind(asking, "a")
        except BindError as error:
            return str(error)
        return ""

    def node_of(self, name: str) -> str:
        return self.cluster.pods["default", name].spec.node_name


@pytest.mark.anyio
async def test_a_pod_that_comes_before_the_first_one_of_its_plan_waits_for_it() -> None:
    bench = Bench()
    second = asyncio.create_task(bench.bind("p2"))
    await asyncio.sleep(0.05)
    assert not second.done()
    assert await bench.bind("p1") == ""
    assert await second == ""
    assert bench.node_of("p1") == bench.node_of("p2") == "a"


@pytest.mark.anyio
async def test_a_binding_is_not_executed_on_a_pod_that_has_another_place_by_now() -> None:
    """The controller has given the places anew, and the extender has not heard of it."""

    bench = Bench()
    bench.place("p1", "g/2")
    assert await bench.bind("p1") == "pod default/p1 has lost its reservation of plan g/1"
    assert not bench.node_of("p1")
    held = bench.ledger.booking("p1")
    assert held is not None
    assert held.reserved
    bench.place("p2", "g/2")
    bench.hear()
    assert await bench.bind("p1") == ""
    assert bench.cluster.pods["default", "p1"].metadata.resource_version != held.version
