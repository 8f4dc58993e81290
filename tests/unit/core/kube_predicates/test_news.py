"""Predicates that were told of every change answer as new ones would, and all nodes at once as each alone."""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputile.api.core import Node, Pod
from gputile.core.kube_predicates import predicates as module
from gputile.core.kube_predicates.node_answers import MOST_RESOURCES, SpareAmounts
from gputile.core.kube_predicates.pod_requests import PODS as POD_COUNT
from gputile.core.kube_predicates.pod_requests import TOO_MANY_PODS, insufficient, lacks
from gputile.core.kube_predicates.predicates import UNKNOWN_NODE, Predicates
from tests.unit.core.kube_predicates.builders import node, pod

pytestmark = pytest.mark.requirement("M13", "C2")

SPECS = (
    "{}",
    "containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]",
    "nodeSelector: {zone: a}",
    "{tolerations: [{operator: Exists}], nodeSelector: {zone: a}, "
    "containers: [{name: c, image: i, resources: {limits: {cpu: 2, example.com/fpga: 1}}}]}",
    "containers: [{name: c, image: i, resources: {requests: {memory: 20Ei}}}]",
    "containers: [{name: c, image: i, ports: [{containerPort: 80, hostPort: 80}]}]",
    "topologySpreadConstraints: [{topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, "
    "labelSelector: {matchLabels: {app: x}}}]",
    "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
    "[{topologyKey: zone, labelSelector: {matchLabels: {app: x}}}]}}",
    "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
    "[{topologyKey: zone, labelSelector: {matchLabels: {app: x}}}]}}",
)
PODS = [pod(spec, f"p{i}{j}", labels={"app": app}) for i, spec in enumerate(SPECS) for j, app in enumerate(("x", "y"))]
NAMES = ("n0", "n1", "n2")


def a_node(name: str, zone: str, cpu: int) -> Node:
    return node(name, {"zone": zone}, cpu=cpu, pods=3)


moves = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES), st.sampled_from("ab"), st.integers(0, 3)),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
    st.tuples(st.just("place"), st.sampled_from(PODS), st.sampled_from(NAMES)),
    st.tuples(st.just("remove"), st.sampled_from(PODS)),
    st.tuples(st.just("ask"), st.sampled_from(PODS)),
    st.tuples(st.just("snapshot"), st.booleans()),
)


@settings(deadline=None)
@given(st.lists(moves, max_size=30), st.sampled_from([1, 4096]))
def test_what_was_told_bit_by_bit_answers_as_what_is_told_at_once(told: list[tuple[Any, ...]], kept: int) -> None:
    """Nodes that change, go and come again under their pods; a log of moves that is too short; steps that prepare."""
    kept_before, module.MOVES_KEPT = module.MOVES_KEPT, kept
    try:
        live = Predicates(())
        nodes: dict[str, Node] = {}
        placed: dict[str, Sequence[Any]] = {}
        for what, *about in told:
            if what == "put":
                nodes[about[0]] = a_node(*about)
                live.put_node(nodes[about[0]])
            elif what == "drop":
                nodes.pop(about[0], None)
                live.drop_node(about[0])
            elif what == "place":
                placed.setdefault(about[0].metadata.uid, about)
                live.place(*about)
            elif what == "remove":
                expected = placed.pop(about[0].metadata.uid, (None, ""))[1]
                assert live.remove(about[0].metadata.uid) == expected
            elif what == "snapshot":
                snapshot = live.snapshot()
                live, forgotten = (snapshot, live) if about[0] else (live, snapshot)
                for each in PODS:
                    forgotten.remove(each.metadata.uid)
                    forgotten.place(each, NAMES[0])
                forgotten.drop_node(NAMES[1])
            else:
                live.reasons(about[0])
            fresh = Predicates(list(nodes.values()))
            for each, name in placed.values():
                fresh.place(each, name)
            for each in PODS if what == "ask" else PODS[:1]:
                answers = fresh.reasons(each)
                for name in NAMES:
                    assert live.reason(each, name) == answers.get(name, UNKNOWN_NODE)
                assert live.reasons(each) == answers
                alone = live.alone(each)
                assert live.refusals_alone(each).each() == [alone[name] for name in live.node_names]
    finally:
        module.MOVES_KEPT = kept_before


def copies(number: int, of: Sequence[Pod] = PODS) -> list[Pod]:
    """Pods with specs of their own, that nobody else refers to."""
    return [msgspec.convert(msgspec.to_builtins(of[i % len(of)]), type=Pod) for i in range(number)]


def referred(objects: Sequence[object]) -> int:
    """Return how many of the objects are referred to by more than the sequence."""
    alone = [object()]
    return sum(sys.getrefcount(objects[i]) > sys.getrefcount(alone[0]) for i in range(len(objects)))


def test_pods_that_were_asked_about_are_kept_in_bounds() -> None:
    live = Predicates([a_node("n0", "a", 3)])
    asked = copies(500)
    for i in range(len(asked)):
        live.reasons(asked[i])
    assert 0 < referred(asked) <= module.MOST_QUESTIONS


def test_specs_that_were_judged_are_kept_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ANSWERS", 3000)
    many = Predicates([a_node(f"n{i}", "a", 3) for i in range(100)])
    specs = [each.spec for each in copies(200, PODS[:1])]
    for i in range(len(specs)):
        many.reasons(Pod(spec=specs[i]))
    assert 0 < referred(specs) <= 30


amounts = st.one_of(st.integers(0, 4), st.sampled_from([2**62 - 1, 2**62, 2**62 + 1, 2**63, 2**80]))
resources = st.dictionaries(st.sampled_from(["cpu", "memory", POD_COUNT, "example.com/fpga"]), amounts)
all_nodes = st.lists(st.tuples(resources, resources), min_size=1, max_size=4)


@given(all_nodes, all_nodes, resources)
@example([({POD_COUNT: 1, "cpu": 2**63}, {})], [], {"cpu": 2**62 - 1})
@example([({POD_COUNT: 1, "cpu": 2**80}, {"cpu": 2**80 - 1})], [], {"cpu": 2})
def test_all_nodes_at_once_answer_as_each_alone(
    at_first: list[tuple[dict[str, int], dict[str, int]]],
    later: list[tuple[dict[str, int], dict[str, int]]],
    asked: dict[str, int],
) -> None:
    needs = {name: amount for name, amount in asked.items() if amount}
    spare = SpareAmounts(at_first)
    spare.first_lacking([(POD_COUNT, 1), *needs.items()])
    for row, (allocatable, used) in enumerate(later[: len(at_first)]):
        spare.update(row, allocatable, used)
    found = spare.first_lacking([(POD_COUNT, 1), *needs.items()])
    now = later[: len(at_first)] + at_first[len(later) :]
    if found is None:
        assert max(needs.values()) >= 2**62
        return
    refusals = [TOO_MANY_PODS, *map(lacks, needs)]
    said = [None if first < 0 else refusals[first] for first in found.tolist()]
    assert said == [insufficient(needs, used, allocatable) for allocatable, used in now]


def test_pods_that_name_ever_other_resources_make_no_array_each() -> None:
    spare = SpareAmounts([({POD_COUNT: 110}, {})])
    answers = [spare.first_lacking([(f"example.com/r{i}", 1)]) for i in range(2 * MOST_RESOURCES)]
    assert [answer is None for answer in answers] == [False] * MOST_RESOURCES + [True] * MOST_RESOURCES
