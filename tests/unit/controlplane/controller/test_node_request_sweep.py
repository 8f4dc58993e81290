"""In each memory unit and each mode: whoever only an empty GPU takes brings a node, and whom none takes brings none."""

from typing import Any

import pytest

from gputile.api.core import Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPU_CORE, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU
from gputile.core.devices.allocation import Allocation, GpuShare, encode_allocation
from gputile.core.devices.inventory import advertised_units
from gputile.core.devices.node_type import NodeType, node_types_of
from gputile.core.placement.steps import at_once
from gputile.kube.objects import Applied
from tests.corebuilders import pod
from tests.unit.controlplane.controller.test_node_request_planner import Bench, said, waits
from tests.unit.core.devices.test_node_type import configured, described

pytestmark = pytest.mark.requirement("U8")

UNITS = ("64MiB", "128MiB", "256MiB", "512MiB", "1GiB", "2GiB", "3GiB")
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


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("mode", SHARED)
def test_a_fragmented_node_brings_another_one(mode: str, unit: str) -> None:
    """Of each GPU a little more than half is in use: what is left is enough in sum."""
    site = Site(mode, unit)
    used = site.units // 2
    for gpu in range(GPUS):
        site.runs(f"r{gpu}", gpu, {GPU_MEMORY: used} | site.core)
    wanted = site.units - used + 1
    assert wanted <= min(site.units, GPUS * (site.units - used))
    assert site.asked_for({GPU_MEMORY: wanted} | site.core) == (1, {"p": "NodeRequested"})


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("mode", SHARED)
def test_what_fits_the_smallest_gap_brings_none(mode: str, unit: str) -> None:
    site = Site(mode, unit)
    for gpu in range(GPUS):
        site.runs(f"r{gpu}", gpu, {GPU_MEMORY: site.units - 1} | site.core)
    assert site.asked_for({GPU_MEMORY: 1} | site.core) == (0, {})


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("mode", SHARED)
@pytest.mark.parametrize("empty", [True, False], ids=["from zero", "beside a node"])
def test_what_no_gpu_of_the_type_could_ever_take_brings_none(mode: str, unit: str, empty: bool) -> None:
    """One unit more than a GPU has, though two GPUs have it in sum; a rest of memory below a unit is nobody's."""
    site = Site(mode, unit, empty=empty)
    assert site.asked_for({GPU_MEMORY: site.units + 1} | site.core, after=10**4) == (0, {"p": "NoNodeTypeFits"})


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("mode", SHARED)
def test_from_zero_the_autoscaler_sees_it_itself_and_is_not_asked(mode: str, unit: str) -> None:
    """However long it takes: it would add a node for the placeholder, too."""
    site = Site(mode, unit, empty=True)
    assert site.asked_for({GPU_MEMORY: site.units} | site.core) == (0, {})
    later = site.bench.round(1000)
    assert (later.created, said(later)) == ([], {"p": "NodeNotAdded"})


@pytest.mark.parametrize("unit", UNITS)
def test_compute_is_fragmented_as_memory_is(unit: str) -> None:
    site = Site("core_mem", unit)
    for gpu in range(GPUS):
        site.runs(f"r{gpu}", gpu, {GPU_MEMORY: 1, GPU_CORE: 60})
    assert site.asked_for({GPU_MEMORY: 1, GPU_CORE: 50}) == (1, {"p": "NodeRequested"})


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


@pytest.mark.parametrize("mode", [*SHARED, "default", "topology"])
@pytest.mark.parametrize("asked", [GPU_MEMORY, WHOLE_GPU, TOPOLOGY_GPU])
def test_another_mode_serves_nobody(mode: str, asked: str) -> None:
    served = {WHOLE_GPU: ["default"], TOPOLOGY_GPU: ["topology"], GPU_MEMORY: ["share", "cgpu", "mps"]}[asked]
    _, events = Site(mode, "256MiB", empty=True).asked_for({asked: 1}, after=1000)
    assert events == {"p": "NodeNotAdded" if mode in served else "NoNodeTypeFits"}
