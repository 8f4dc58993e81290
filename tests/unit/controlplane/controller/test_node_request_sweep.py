"""In small and large memory units and each mode: pods bring a node that only an empty GPU takes, and no others."""

from collections.abc import Callable
from typing import Any

import pytest

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_CORE, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU
from gputile.core.devices.allocation import Allocation, GpuShare, encode_allocation
from gputile.core.devices.inventory import advertised_units
from gputile.core.devices.node_type import NodeType, node_types_of
from gputile.kube.objects import Applied
from tests.fakes.corebuilders import pod
from tests.fakes.coroutines import at_once
from tests.unit.controlplane.controller.test_node_request_planner import Bench, said, waits
from tests.unit.core.devices.test_node_type import configured, described

pytestmark = pytest.mark.requirement("U8")

UNITS = ("64MiB", "1GiB", "3GiB")
SHARED = ("share", "cgpu", "core_mem", "mps")
GPUS = 2
CORE = {"core_mem": {GPU_CORE: 10}}  # what each pod asks for beside memory


class Site:
    """A cluster with one node of the only type, and the type."""

    def __init__(self, mode: str, unit: str, *, empty: bool = False) -> None:
        configuration = configured(described(mode, GPUS), unit=unit)
        self.kind: NodeType = node_types_of(configuration)[0]
        self.bench = Bench(configuration=configuration)
        self.units = advertised_units(self.kind.gpus[0], self.kind.unit_mib)
        self.core = CORE.get(mode, {})
        if not empty:
            at_once(self.bench.state.node_event(Applied(self.kind.node("n"))))

    def runs(self, name: str, gpu: int, asks: dict[str, int]) -> None:
        """Have a pod run on a GPU of the node."""
        mib, whole = asks.get(GPU_MEMORY, 0) * self.kind.unit_mib, GPU_MEMORY not in asks
        share = GpuShare(f"n/{gpu}", gpu, self.kind.gpus[gpu].mib if whole else mib, asks.get(GPU_CORE, 0))
        text = encode_allocation(Allocation((share,), {"main": (share,)}, self.kind.unit_mib, whole=whole))
        self.bench.put(pod(name, asks=asks, node="n", annotations={ALLOCATION_ANNOTATION: text}))

    def asked_for(self, asks: dict[str, int], after: float = 10, **more: Any) -> tuple[int, dict[str, str]]:
        """Have a pod wait; return how many nodes it brings, and the reasons of its events."""
        waiting: Pod = waits("p", asks=asks, **more)
        self.bench.put(waiting)
        result = self.bench.round(after)
        return len(result.created), said(result)


# Of a node's GPUs, by the units of one: what is in use of each (None: there is no node), and what is asked for.
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("mode", SHARED)
@pytest.mark.parametrize(
    ("used", "wanted", "after", "brings"),
    [
        (lambda units: units // 2, lambda units: units - units // 2 + 1, 10, (1, {"p": "NodeRequested"})),
        (lambda units: units - 1, lambda _: 1, 10, (0, {})),
        (lambda _: 0, lambda units: units + 1, 10**4, (0, {"p": "NoNodeTypeFits"})),
        (None, lambda units: units + 1, 10**4, (0, {"p": "NoNodeTypeFits"})),
        (None, lambda units: units, 10, (0, {})),
        (None, lambda units: units, 1000, (0, {"p": "NodeNotAdded"})),
    ],
    ids=["fragmented", "smallest gap", "too large", "too large, from zero", "from zero", "from zero, and late"],
)
def test_a_pod_brings_a_node_where_only_an_empty_gpu_takes_it(
    mode: str,
    unit: str,
    used: Callable[[int], int] | None,
    wanted: Callable[[int], int],
    after: float,
    brings: tuple[int, dict[str, str]],
) -> None:
    """From zero the autoscaler sees the pod itself; it would add a node for the placeholder, too."""
    site = Site(mode, unit, empty=used is None)
    in_use = used(site.units) if used is not None else 0
    for gpu in range(GPUS if in_use else 0):
        site.runs(f"r{gpu}", gpu, {GPU_MEMORY: in_use} | site.core)
    assert site.asked_for({GPU_MEMORY: wanted(site.units)} | site.core, after) == brings


@pytest.mark.parametrize(("mode", "resource"), [("default", WHOLE_GPU), ("topology", TOPOLOGY_GPU)])
@pytest.mark.parametrize(
    ("wanted", "after", "event"),
    [(1, 1000, None), (2, 10, None), (2, 1000, "NodeNotAdded"), (3, 1000, "NoNodeTypeFits")],
)
def test_whole_gpus_are_sums_that_the_autoscaler_sees(
    mode: str, resource: str, wanted: int, after: float, event: str | None
) -> None:
    """One of two is in use. Who wants two is seen by the autoscaler itself, who wants three finds no such type."""
    site = Site(mode, "1GiB")
    site.runs("r", 0, {resource: 1})
    created, events = site.asked_for({resource: wanted}, after)
    assert (created, events.get("p")) == (0, event)
