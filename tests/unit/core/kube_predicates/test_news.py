"""Predicates that were told of every change answer as new ones would, and all nodes at once as each alone."""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.api.core import Node, Pod
from gputile.core.kube_predicates import predicates as module
from gputile.core.kube_predicates.pod_requests import lacks
from gputile.core.kube_predicates.predicates import UNKNOWN_NODE, Predicates
from tests.costs.calls import calls
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
                live.set_node(nodes[about[0]])
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
                assert live.open_nodes(each) == [name for name, reason in answers.items() if reason is None]
                assert sorted(live.node_names) == sorted(answers)
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


def test_pods_that_name_ever_other_resources_make_no_array_each() -> None:
    live = Predicates([a_node("n0", "a", 3)])
    requests = ", ".join(f"example.com/r{i}: 1" for i in range(1000))
    asking = pod(f"containers: [{{name: c, resources: {{limits: {{{requests}}}}}}}]")
    assert live.reasons(asking) == {"n0": live.reason(asking, "n0")} == {"n0": lacks("example.com/r0")}
    costs = [calls(lambda: live.refusals_alone(asking)), calls(lambda: live.refusals_alone(PODS[0]))]
    assert costs[0] <= 2 * costs[1]
