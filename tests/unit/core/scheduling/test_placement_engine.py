"""Filter, rank and decide: the answers that a scheduler gets."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.well_known import MEMORY_UNIT_ANNOTATION, Placement
from gputile.core.devices.request import Request, parse_request
from gputile.core.kube_predicates.pod_requests import HostResources
from gputile.core.ledger.ledger import Ledger
from gputile.core.placement import packing_scores, vectorized
from gputile.core.placement.fit import SUMMARY, UNRESOLVABLE
from gputile.core.placement.prices import prices
from gputile.core.placement.vectorized import UNFIT
from gputile.core.refusal import FitRule, Refusal
from gputile.core.scheduling.bind import PodBinding
from gputile.core.scheduling.placement_engine import NAMED_NODES, TOP_SCORE, Decision, PlacementEngine
from tests.fakes.corebuilders import book, container, gpu_node, ledger_of, pod, request_of, share
from tests.unit.core.placement.strategies import ledgers, requests

NAMES = ["n0", "gone", "n1", "n2"]


@given(ledgers(), requests(), st.permutations(NAMES))
def test_every_node_asked_for_is_answered_once_and_as_decide_would(
    ledger: Ledger, request: Request, names: list[str]
) -> None:
    engine = PlacementEngine(ledger)
    result = engine.filter(request, names)
    assert result.feasible == [name for name in names if name in set(result.feasible)]
    assert sorted([*result.feasible, *result.refused, *result.unresolvable]) == sorted(names)
    for name in names:
        decision = engine.decide(request, name, 0)
        assert (name in result.feasible) == isinstance(decision, Decision)
        if isinstance(decision, Refusal):
            assert (name in result.unresolvable) == (decision.rule in UNRESOLVABLE)
            assert {**result.refused, **result.unresolvable}[name] == f"{name}: {decision.text}"
            assert (name, decision.text) in result.closest


@given(ledgers(), requests(), st.permutations(NAMES))
def test_ranks_order_nodes_as_scores_do_and_use_the_whole_range(
    ledger: Ledger, request: Request, names: list[str]
) -> None:
    engine = PlacementEngine(ledger)
    ranks = dict(zip(names, engine.rank(request, names), strict=True))
    scores = {name: int(engine.scores(request.shape, request.host)[row]) for name, row in ledger.row_of.items()} | {
        "gone": UNFIT
    }
    assert all(0 <= rank <= TOP_SCORE for rank in ranks.values())
    fitting = [name for name in names if scores[name] != UNFIT]
    assert all(ranks[name] == 0 for name in names if name not in fitting)
    assert [rank for rank in ranks.values() if rank == TOP_SCORE] == [TOP_SCORE] * bool(fitting)
    for a in fitting:
        for b in fitting:
            if scores[a] > scores[b]:
                assert ranks[a] > ranks[b]
            if scores[a] == scores[b]:
                assert abs(ranks[a] - ranks[b]) <= (TOP_SCORE in (ranks[a], ranks[b]))


def test_of_equal_nodes_one_is_first_whatever_the_order_of_the_question() -> None:
    engine = PlacementEngine(ledger_of(*(gpu_node(f"n{i}", mode="cgpu") for i in range(3))))
    assert engine.rank(request_of(pod(mem=1)), ["n2", "n0", "n1"]) == [9, 10, 9]


def test_below_the_tenth_distinct_score_ranks_are_0() -> None:
    ledger = ledger_of(*(gpu_node(f"n{i:02}", mode="cgpu") for i in range(13)))
    for i in range(1, 13):
        book(ledger, f"p{i}", f"n{i:02}", share(f"GPU-n{i:02}-0", i * 1024))
    ranks = PlacementEngine(ledger).rank(request_of(pod(mem=1)), [f"n{i:02}" for i in range(13)])
    assert ranks == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10]


PLAIN = HostResources(cpu=8000, mib=1024)


def machines(placement: Placement = "binpack", bare: Sequence[str] = ()) -> PlacementEngine:
    """Nodes of 10 CPUs: ``full`` has no GPU free, ``half`` has half of them, ``empty`` all, ``bare`` none at all."""
    room = {"cpu": "10", "memory": "100Gi"}
    nodes = [gpu_node(name, mode="cgpu", sizes=[8192] * 2, allocatable=room) for name in ("empty", "half", "full")]
    nodes += [gpu_node(name, sizes=[], allocatable=room) for name in bare]
    ledger = ledger_of(*nodes, configuration=Configuration(placement=placement))
    for number, name in enumerate(["half", "full", "full"]):
        book(ledger, f"p{number}", name, share(f"GPU-{name}-{number // 2}", 8192), host=HostResources(1000, 0))
    return PlacementEngine(ledger)


@pytest.mark.requirement("B3")
@pytest.mark.parametrize("placement", ["binpack", "packing"])
def test_a_pod_without_gpus_goes_where_the_fewest_gpus_are_free(placement: Placement) -> None:
    ranks = machines(placement).rank_without_gpus(PLAIN, ["empty", "half", "full", "gone"])
    assert ranks[2] == TOP_SCORE
    assert ranks[3] == 0
    assert TOP_SCORE > ranks[1] >= ranks[0] > 0


@pytest.mark.requirement("B3")
@pytest.mark.parametrize("placement", ["binpack", "packing"])
def test_nodes_without_gpus_come_first_and_are_equal(placement: Placement) -> None:
    """Which of them, kube-scheduler says; the others are no choice while there is one."""
    engine = machines(placement, bare=["x", "y"])
    assert engine.rank_without_gpus(PLAIN, ["empty", "x", "full", "y"]) == [0, TOP_SCORE, 0, TOP_SCORE]


def test_spread_has_no_opinion_on_pods_without_gpus() -> None:
    assert machines("spread").rank_without_gpus(PLAIN, ["empty", "full"]) == [0, 0]
    assert machines().rank_without_gpus(PLAIN, []) == []


@pytest.mark.requirement("B3")
def test_binpack_leaves_gpus_where_the_machine_has_cpu_for_them() -> None:
    """Two nodes with as much GPU in use: the pod goes where CPU is left in proportion."""
    room = {"cpu": "10", "memory": "100Gi"}
    ledger = ledger_of(*(gpu_node(name, mode="cgpu", sizes=[8192] * 2, allocatable=room) for name in ("a", "b")))
    for name, cpu in (("a", "9"), ("b", "1")):
        ledger.apply_pod(pod(f"plain-{name}", node=name, cpu=cpu))
    request = request_of(pod(mem=4, cpu="1"))
    assert PlacementEngine(ledger).best_first(request, ["a", "b"]) == ["b", "a"]


@pytest.mark.requirement("B4")
def test_of_many_refused_nodes_ten_are_named_and_the_others_counted_b4() -> None:
    ledger = ledger_of(
        *(gpu_node(f"full-{i}", mode="cgpu", sizes=[15360]) for i in range(30)),
        *(gpu_node(f"small-{i}", mode="cgpu", sizes=[4096]) for i in range(30)),
        *(gpu_node(f"whole-{i}") for i in range(30)),
        *(gpu_node(f"broken-{i}", inventory="{") for i in range(30)),
    )
    for i in range(30):
        book(ledger, f"p{i}", f"full-{i}", share(f"GPU-full-{i}-0", (15 - i % 10) * 1024))
    result = PlacementEngine(ledger).filter(request_of(pod(mem=10)), list(reversed(ledger.row_of)))
    named = {
        name: text for name, text in (result.refused | result.unresolvable).items() if text.startswith(f"{name}: ")
    }
    assert not result.feasible
    assert len(named) == len(result.closest) == NAMED_NODES
    # Those with the most free are named: nine units, then eight.
    assert [text for _, text in result.closest[:3]] == [
        "GPU 0 has 9 GiB of 15 GiB free; the pod needs 10 GiB on one GPU"
    ] * 3
    assert {name.partition("-")[0] for name in named} == {"full"}
    others = {text for name, text in (result.refused | result.unresolvable).items() if name not in named}
    assert others == {SUMMARY[rule] for rule in (FitRule.GPUS_TAKEN, FitRule.TOO_LARGE, FitRule.MODE, FitRule.BROKEN)}
    assert {name.partition("-")[0] for name in result.refused} == {"full"}
    assert len(result.refused) + len(result.unresolvable) == 120


def test_a_name_that_is_not_known_is_not_taken_for_another_node() -> None:
    ledger = ledger_of(gpu_node("full", mode="cgpu", sizes=[15360]))
    book(ledger, "p", "full", share("GPU-full-0", 1024))
    names = ["full", *(f"gone-{i}" for i in range(20))]
    result = PlacementEngine(ledger).filter(request_of(pod(mem=15)), names)
    assert list(result.refused) == ["full"]
    assert result.closest[0][0] == "full"
    assert {result.unresolvable[name] for name in names[1 + NAMED_NODES :]} == {SUMMARY[FitRule.NO_GPUS]}


@pytest.mark.requirement("U3")
def test_a_decision_names_gpus_units_and_each_containers_part_u3() -> None:
    ledger = ledger_of(gpu_node(mode="cgpu", unit_mib=128, sizes=[15109] * 2))
    book(ledger, "h", "n", share("GPU-n-1", 1024))
    asking = pod("p", container("a", mem=16), container("b", mem=4))
    decision = PlacementEngine(ledger).decide(request_of(asking, 128), "n", 5)
    assert isinstance(decision, Decision)
    assert decision.allocation is not None
    assert [gpu.index for gpu in decision.gpus] == [1]
    assert decision.annotations(asking)["ALIYUN_COM_GPU_MEM_DEV"] == "118"
    assert [(s.uuid, s.mib) for s in decision.allocation.gpus] == [("GPU-n-1", 2560)]
    assert {name: s[0].mib for name, s in decision.allocation.containers.items()} == {"a": 2048, "b": 512}
    assert (decision.allocation.mode, decision.allocation.unit_mib, decision.allocation.assumed_ns) == ("cgpu", 128, 5)
    assert decision.text() == "GPU 1 (2.5 GiB)"


def test_a_binding_is_for_this_pod_only_and_its_booking_is_what_the_binding_says() -> None:
    asking = pod("p", mem=2, core=10)
    ledger = ledger_of(gpu_node(mode="core_mem"))
    decision = PlacementEngine(ledger).decide(request_of(asking), "n", 5)
    assert isinstance(decision, Decision)
    binding, booking = PodBinding(ledger, asking, decision, "").body, decision.booking(asking, request_of(asking), 3.0)
    assert (binding.metadata.uid, binding.target.kind, binding.target.name) == ("p", "Node", "n")
    assert booking is not None
    assert (booking.uid, booking.node, booking.assumed_at, booking.allocation) == ("p", "n", 3.0, decision.allocation)
    assert decision.text() == "GPU 0 (2 GiB, 10 % of compute)"


@pytest.mark.requirement("G6")
def test_gpus_of_another_device_plugin_are_neither_booked_nor_annotated_g6() -> None:
    node = gpu_node(inventory="", allocatable={"nvidia.com/gpu": "2"})
    asking = pod(asks={"nvidia.com/gpu": 1})
    decision = PlacementEngine(ledger_of(node)).decide(request_of(asking), "n", 0)
    assert isinstance(decision, Decision)
    assert decision.annotations(asking) == {}
    assert decision.booking(asking, request_of(asking), 0.0) is None
    assert decision.text() == "GPUs by the node's own device plugin"


@pytest.mark.requirement("T2")
@pytest.mark.parametrize(
    ("mode", "asking", "held", "expected"),
    [
        ("topology", pod(asks={"aliyun.com/gpu": 2}), (), [1, 3]),
        ("default", pod(asks={"nvidia.com/gpu": 2}), (), [1, 3]),
        ("default", pod(asks={"nvidia.com/gpu": 1}), (), [0]),
        ("default", pod(asks={"nvidia.com/gpu": 2}), (3,), [0, 1]),
        ("cgpu", pod(mem=8, count=2), (), [1, 3]),
        ("cgpu", pod(mem=8, count=2), (0, 2), [0, 2]),  # GPUs in use are filled first
        ("cgpu", pod(mem=8, count=2), (0,), [0, 1]),
    ],
)
def test_equally_good_gpus_are_the_connected_ones_t2(
    mode: str, asking: Pod, held: tuple[int, ...], expected: list[int]
) -> None:
    links = tuple(tuple(50.0 if {a, b} == {1, 3} else 10.0 for a in range(4)) for b in range(4))
    ledger = ledger_of(gpu_node(mode=mode, bandwidth=links))
    for gpu in held:
        book(ledger, f"h{gpu}", "n", share(f"GPU-n-{gpu}", 1024), whole=mode == "default")
    decision = PlacementEngine(ledger).decide(request_of(asking), "n", 0)
    assert isinstance(decision, Decision)
    assert [gpu.index for gpu in decision.gpus] == expected


@given(
    ledger=ledgers(), request=requests(), placement=st.sampled_from(["", "packing"]), sizes=st.permutations([3, 9, 20])
)
def test_a_node_of_many_gpus_leaves_the_scores_of_all_nodes_as_they_are(
    ledger: Ledger, request: Request, placement: str, sizes: Sequence[int]
) -> None:
    """Fewer columns are computed for the others; its GPUs come and go, and so do their pods."""
    if placement:
        ledger.configuration = Configuration(placement="packing")
    engine = PlacementEngine(ledger)
    assert bool(engine.demand) is bool(placement)
    for number, gpus in enumerate(sizes):
        ledger.apply_node(gpu_node("wide", mode="cgpu", sizes=[15360] * gpus, placement=placement))
        book(ledger, f"wide{number}", "wide", share(f"GPU-wide-{gpus - 1}", 1024))
        found = engine.scores(request.shape, request.host).tolist()
        arrays = ledger.node_arrays
        rows = slice(0, arrays.rows)
        if engine.packing_state is not None:
            wanted = packing_scores.scores(arrays, request.shape, request.host, rows, engine.packing_state)
        else:
            wanted = vectorized.scores(arrays, request.shape, request.host, rows, emptier=False)
        assert found == wanted.tolist()


MEMORY_UNITS = st.sampled_from([64, 100, 128, 512, 1000, 1024, 2048])


def stamped(units: int, unit_mib: int, gpus: int = 1) -> Pod:
    return pod(mem=units, count=gpus, annotations={MEMORY_UNIT_ANNOTATION: str(unit_mib)})


def placed(asking: Pod, configured_mib: int, *nodes: Node) -> Decision | str:
    """Return the decision, or what kube-scheduler is told of the first node."""
    configuration = Configuration(gpu_memory_unit=f"{configured_mib}MiB")
    engine = PlacementEngine(ledger_of(*nodes, configuration=configuration))
    request = parse_request(asking, configuration.unit_mib)
    assert request is not None
    name = nodes[0].metadata.name
    found = engine.filter(request, [name])
    if not found.feasible:
        assert not found.refused, "nobody's leaving would help: nothing is preempted for it"
        return found.unresolvable[name]
    decision = engine.decide(request, name, 1)
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.requirement("U5", "U9", "M12")
@given(units=st.integers(1, 12), gpus=st.integers(1, 3), before=MEMORY_UNITS, after=MEMORY_UNITS)
def test_what_it_is_told_is_as_much_and_can_be_asked_for(units: int, gpus: int, before: int, after: int) -> None:
    node = gpu_node(mode="cgpu", sizes=[2**20] * 3, unit_mib=after)
    told = placed(stamped(units * gpus, before, gpus), after, node)
    if before == after:
        assert isinstance(told, Decision)
        return
    assert isinstance(told, str)
    said = re.search(r"again with (\d+) units for its (\d+) MiB", told)
    assert said is not None
    number, mib = int(said[1]), int(said[2])
    assert mib == units * gpus * before
    assert told == (
        f"n: its memory unit is {after} MiB; the pod's unit is {before} MiB, which was in force when it was created: "
        f"create it again with {number} units for its {mib} MiB"
    )
    anew = placed(stamped(number, after, gpus), after, node)
    assert isinstance(anew, Decision)
    assert anew.allocation is not None
    assert all(units * before <= each.mib < units * before + after for each in anew.allocation.gpus)


def booked(policy: Placement, gpus: Sequence[int], asked: Sequence[int]) -> list[str]:
    """The nodes of pods that ask for so many whole GPUs each, one after the other; "" for one that fits nowhere."""
    ledger = Ledger(Configuration(placement=policy))
    names = [f"n{i}" for i in range(len(gpus))]
    for name, count in zip(names, gpus, strict=True):
        ledger.apply_node(gpu_node(name, mode="default", sizes=[24_000] * count))
    engine, found = PlacementEngine(ledger), []
    for i, count in enumerate(asked):
        asking = pod(f"p{i}", asks={"nvidia.com/gpu": count})
        request = request_of(asking)
        if engine.demand is not None:
            engine.demand.observe(asking, request)
            if engine.demand.due():
                engine.reprice(prices(engine.demand.demand()))
        name = next(iter(engine.best_first(request, names)), "")
        decision = engine.decide(request, name, 0)
        if isinstance(decision, Decision):
            booking = decision.booking(asking, request, 0.0)
            assert booking is not None
            ledger.assume(booking)
        found.append(name)
    return found


@pytest.mark.requirement("B3")
@settings(deadline=None)
@given(st.integers(1, 6), st.sampled_from([2, 4, 8]), st.lists(st.sampled_from([1, 1, 2, 4, 8]), max_size=40))
def test_of_equal_gains_the_fullest_node_is_taken(nodes: int, gpus: int, asked: list[int]) -> None:
    """Equal nodes that lack GPUs alone: nothing but fullness tells them apart, and packing is binpack."""
    packing = booked("packing", [gpus] * nodes, asked)
    assert sum(map(bool, packing)) == sum(map(bool, booked("binpack", [gpus] * nodes, asked)))
    left = dict.fromkeys((f"n{i}" for i in range(nodes)), gpus)
    for name, count in zip(packing, asked, strict=True):
        if name and left[name] == gpus:
            assert not any(count <= free < gpus for free in left.values()), "an idle node is opened, a used one is not"
        if name:
            left[name] -= count
