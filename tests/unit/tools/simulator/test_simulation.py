"""Each pod of a simulation goes where kube-scheduler and the extender would put it."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement.prices import prices
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.tools.simulator.scenario import Scenario
from gputile.tools.simulator.simulation import RANK_WEIGHT, Simulation
from tests.unit.tools.simulator.builders import node, pod

pytestmark = pytest.mark.requirement("B4", "C2")

MEM = "aliyun.com/gpu-mem"
CORE = "aliyun.com/gpu-core.percentage"
NODES: list[dict[str, Any]] = [
    {"mode": "cgpu", "gpus": [{"count": 2, "memory": "7GiB"}]},
    {"mode": "cgpu", "placement": "spread", "gpus": [{"memory": "7GiB"}, {"memory": "4GiB"}]},
    {"mode": "cgpu", "gpus": [{"count": 2, "memory": "7GiB", "unhealthy": [0]}], "pods": 3},
    {"mode": "share", "gpus": [{"count": 3, "memory": "5GiB"}]},
    {"mode": "core_mem", "gpus": [{"count": 2, "memory": "6GiB"}], "cpu": 3},
    {"mode": "default", "gpus": [{"count": 3, "memory": "7GiB"}]},
    {"mode": "topology", "gpus": [{"count": 4, "memory": "7GiB", "bandwidth": "nvlink"}]},
    {"mode": "cgpu", "gpus": [{"count": 2, "memory": "7GiB"}], "unschedulable": True},
]
ASKS: list[dict[str, Any]] = [{MEM: 2}, {MEM: 3, "cpu": 1}, {MEM: 2, CORE: 30}, {"nvidia.com/gpu": 1}, {"cpu": 1}]


def machines(kinds: list[int]) -> list[Node]:
    return [node(f"n{i}", **NODES[kind]) for i, kind in enumerate(kinds)]


def templates() -> list[Pod]:
    taint = "tolerations: [{operator: Exists}]"
    return [
        pod(f"{{{taint}, containers: [{{name: c, image: i, resources: {{limits: {limits}}}}}]}}", f"t{i}")
        for i, limits in enumerate(str(ask).replace("'", '"') for ask in ASKS)
    ]


def copies(kinds: list[int]) -> list[Pod]:
    """Pods of a few workloads; those of one have one spec, as the pods of a template do."""
    made, found = templates(), []
    for number, kind in enumerate(kinds):
        meta = msgspec.structs.replace(made[kind].metadata, name=f"p{number}", uid=f"p{number}")
        found.append(msgspec.structs.replace(made[kind], metadata=meta))
    return found


def one_by_one(nodes: list[Node], pods: list[Pod], configuration: Configuration) -> tuple[list[Any], Ledger]:
    """Return each pod's place as kube-scheduler finds it: it filters, asks for ranks, and adds its own scores.

    With packing, prices follow the demand of all pods, of those that are refused too.
    """
    ledger, predicates = Ledger(configuration), Predicates(nodes)
    for machine in nodes:
        ledger.apply_node(machine)
    engine, found = PlacementEngine(ledger), list[Any]()
    for each in pods:
        request = engine.request(each)
        if engine.demand is not None:
            engine.demand.observe(each, request)
            if engine.demand.due():
                engine.reprice(prices(engine.demand.demand()))
        names = [name for name, reason in predicates.reasons(each).items() if reason is None]
        feasible = engine.filter(request, names).feasible if request else names
        if not feasible:
            found.append(None)
            continue
        rows = np.array([predicates.node_names.index(name) for name in feasible])
        scores = dict(zip(feasible, predicates.scores(each, rows).tolist(), strict=True))
        ranks = engine.rank(request, feasible) if request else [0] * len(feasible)
        by_name = dict(zip(feasible, ranks, strict=True))
        best = max(feasible, key=lambda name: by_name[name] * RANK_WEIGHT + scores[name])
        decision = engine.decide(request, best, 1) if request else Decision(best, (), None)
        assert isinstance(decision, Decision)
        annotations = each.metadata.annotations | decision.annotations(each)
        meta = msgspec.structs.replace(each.metadata, annotations=annotations)
        spec = msgspec.structs.replace(each.spec, node_name=best)
        ledger.apply_pod(msgspec.structs.replace(each, metadata=meta, spec=spec))
        predicates.place(each, best)
        found.append((best, decision.allocation, len(feasible)))
    return found, ledger


@given(
    kinds=st.lists(st.integers(0, len(NODES) - 1), min_size=1, max_size=6),
    asked=st.lists(st.integers(0, len(ASKS) - 1), max_size=30),
    placement=st.sampled_from(["binpack", "spread", "packing"]),
)
@example(kinds=[4, 7, 4], asked=[*[0] * 20, *[2, 4], *[2] * 6, *[4, 4, 2, 2]], placement="packing")
@example(kinds=[1, 3], asked=[1, 0, 1, 1, 0, 0, 0, 1, 0, 1], placement="spread")
def test_each_pod_goes_where_it_would_go_by_itself(kinds: list[int], asked: list[int], placement: Any) -> None:
    configuration = Configuration(placement=placement)
    nodes, pods = machines(kinds), copies(asked)
    expected, ledger = one_by_one(nodes, pods, configuration)
    simulation = Simulation(configuration)
    outcomes = list(simulation.run(Scenario(nodes=nodes, pending=pods), lambda: 1))
    assert [outcome.node for outcome in outcomes] == [each and each[0] for each in expected]
    assert [outcome.allocation for outcome in outcomes] == [each and each[1] for each in expected]
    for outcome, each in zip(outcomes, expected, strict=True):
        assert each is None or outcome.reason.startswith(f"fits {each[2]} of {len(nodes)} node(s)")
    assert {b.uid: b for b in simulation.ledger.bookings()} == {b.uid: b for b in ledger.bookings()}
