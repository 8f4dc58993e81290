"""What a gang that has waited too long keeps others from: the nodes that its own pods could use, and no others."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import pytest

from gputile.api.core import Pod
from gputile.controlplane.controller.gang_round import GangRound
from gputile.kube.objects import Replaced
from tests.fakes.corebuilders import bound, pod
from tests.unit.controlplane.controller.test_gang_planner import NOW, member, placed, said
from tests.unit.controlplane.controller.test_node_request_planner import Bench as RequestBench
from tests.unit.controlplane.controller.test_node_request_planner import node
from tests.unit.core.devices.test_node_type import configured, described
from tests.unit.core.scheduling.test_new_nodes import tolerant

pytestmark = pytest.mark.requirement("M13", "U8")

STARVED = 700  # seconds after the first gang has come; gangs.patienceSeconds is 600
X, Y = {"pool": "x"}, {"pool": "y"}


def asking(name: str, number: int, size: int, on: Mapping[str, str], after: float, units: int) -> Pod:
    """A pod of a gang that came ``after`` seconds and wants so many units of a GPU with 15."""
    found = member(name, number, size)
    containers = pod("sized", mem=units).spec.containers
    spec = msgspec.structs.replace(found.spec, containers=containers, node_selector=dict(on), priority=5)
    born = datetime.fromtimestamp(NOW + after, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    meta = msgspec.structs.replace(found.metadata, creation_timestamp=born)
    return tolerant(msgspec.structs.replace(found, metadata=meta, spec=spec))


class Bench(RequestBench):
    """A node in use of the pool x, and the gang ``a`` for it, which has waited too long; then others come."""

    def __init__(self, on: Mapping[str, str] = X, *, types: tuple[str, ...] = ("pool=x", "pool=y")) -> None:
        described_types = [described(count=2, label=label) for label in types]
        super().__init__(node("nx", type_="pool=x"), gangs=True, configuration=configured(*described_types))
        self.state.budget_event(Replaced([]))
        self.put(*(_important(bound(f"r{gpu}", "nx", gpu, 10)) for gpu in range(2)))
        self.comes("a", on, after=0)
        self.gangs_round(1)
        assert said(self.gangs_round(STARVED)) == {}

    def comes(self, name: str, on: Mapping[str, str], *, after: float = STARVED, units: int = 15) -> None:
        """Have a gang of two pods come."""
        self.put(*(asking(name, number, 2, on, after, units) for number in range(2)))

    def gangs_round(self, after: float) -> GangRound:
        return self.round_of_gangs(after)

    def types_asked(self, after: float) -> list[str]:
        """Return the types of the nodes that a round asks for."""
        return [kind.name for kind in self.round(after).created]


def _important(running: Pod) -> Pod:
    return msgspec.structs.replace(running, spec=msgspec.structs.replace(running.spec, priority=9))


def test_nodes_are_asked_for_gangs_behind_it() -> None:
    """The cloud has no more nodes of one type, and would add one of the other at once."""
    bench = Bench()
    assert bench.types_asked(STARVED) == ["pool=x"]
    bench.comes("b", Y)
    assert bench.types_asked(STARVED + 1) == ["pool=y"]
    bench.join(node("ny", type_="pool=y"))
    assert placed(bench.gangs_round(STARVED + 60)) == ["b-0", "b-1"]


def test_no_nodes_are_asked_for_gangs_that_would_have_room_but_for_it() -> None:
    """What it keeps on the node leaves room that another gang is to wait for."""
    bench = Bench({}, types=("pool=y",))
    bench.comes("b", {}, units=2)
    bench.round(STARVED + 1)
    assert {each.metadata.name for each in bench.gangs.without_room} == {"a-0", "a-1"}
    bench.put(bound("r2", "nx", 0, 4), bound("r3", "nx", 1, 4))
    bench.gangs_round(STARVED + 15)
    names = {each.metadata.name for each in bench.gangs.without_room}
    assert names == {"a-0", "a-1", "b-0", "b-1"}, "others have taken the room"


@pytest.mark.parametrize(("on", "told"), [(Y, "GangPreempting"), (X, "GangBehind")])
def test_pods_leave_for_gangs_behind_it_where_it_could_not_go(on: Mapping[str, str], told: str) -> None:
    bench = Bench()
    bench.join(node("ny", type_="pool=y"))
    bench.put(bound("low0", "ny", 0, 10), bound("low1", "ny", 1, 10))
    bench.comes("b", on)
    assert said(bench.gangs_round(STARVED + 1))["b"] == told
