"""Rules about other pods, against what kube-scheduler's plugin does: pkg/scheduler/framework/plugins/interpodaffinity.

``allowed`` follows its PreFilter and Filter over whole objects, without the counts that are kept here.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Node, Pod
from gputile.core.kube_predicates import predicates
from gputile.core.kube_predicates.inter_pod import (
    AFFINITY,
    ANTI_AFFINITY,
    EXISTING_ANTI_AFFINITY,
    MOST_PARTS,
    anti_affinity_terms,
)
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.refusal import PredicateRule, Refusal
from tests.costs.calls import calls

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NAME = "kubernetes.io/metadata.name"


def nodes_of(*zones: str) -> list[Json]:
    """Nodes n0, n1, ...; "" is a node that lies in no zone."""
    labels = [{"host": f"n{i}"} | ({"zone": zone} if zone else {}) for i, zone in enumerate(zones)]
    status = {"allocatable": {"cpu": "9", "pods": "99"}}
    return [{"metadata": {"name": each["host"], "labels": each}, "status": status} for each in labels]


def term(key: str, /, selector: Json | None = None, **more: Any) -> Json:
    return {"topologyKey": key, **({} if selector is None else {"labelSelector": selector}), **more}


def app(name: str) -> Json:
    return {"matchLabels": {"app": name}}


def pod_of(name: str, labels: Json, anti: Sequence[Json] = (), near: Sequence[Json] = (), namespace: str = "x") -> Json:
    rules = {"podAntiAffinity": {REQUIRED: list(anti)}, "podAffinity": {REQUIRED: list(near)}}
    metadata = {"name": name, "uid": name, "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c"}], "affinity": rules}}


def answers(
    pod: Json, nodes: list[Json], placed: Sequence[tuple[Json, str]]
) -> dict[str, Refusal[PredicateRule] | None]:
    """What is said of each node, once and node by node."""
    cluster = Predicates(msgspec.convert(nodes, list[Node]))
    asked = msgspec.convert(pod, Pod)
    cluster.reasons(asked)  # what comes later counts, too
    for other, node in placed:
        cluster.place(msgspec.convert(other, Pod), node)
    found = cluster.reasons(asked)
    assert found == {name: cluster.reason(asked, name) for name in found}
    return found


def test_the_reasons_come_in_the_order_of_the_plugin() -> None:
    nodes = nodes_of("z1")
    hostile = pod_of("r", {"app": "a"}, [term("host", app("p"))])
    assert answers(pod_of("p", {"app": "p"}), nodes, [(hostile, "n0")]) == {"n0": EXISTING_ANTI_AFFINITY}
    shy = pod_of("p", {"app": "p"}, [term("host", app("a"))])
    assert answers(shy, nodes, [(hostile, "n0")]) == {"n0": ANTI_AFFINITY}
    fond = pod_of("p", {"app": "p"}, [term("host", app("a"))], [term("host", app("b"))])
    assert answers(fond, nodes, [(hostile, "n0")]) == {"n0": AFFINITY}


def selects(selector: Json | None, labels: Json) -> bool:
    if selector is None:
        return False
    rules: dict[str, Callable[[str, Any], bool]] = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, _: key in labels,
        "DoesNotExist": lambda key, _: key not in labels,
    }
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        rules[each["operator"]](each["key"], each.get("values")) for each in selector.get("matchExpressions", ())
    )


def speaks_of(rule: Json, owner: Json, other: Json) -> bool:
    """AffinityTerm.Matches, after the API server has merged the owner's values of label keys into the selector."""
    selector, own = rule.get("labelSelector"), owner["metadata"]["labels"]
    namespace, chosen = other["metadata"]["namespace"], rule.get("namespaceSelector")
    listed = rule.get("namespaces") or ([owner["metadata"]["namespace"]] if chosen is None else [])
    if selector is not None:
        added = [
            {"key": key, "operator": operator, "values": [own[key]]}
            for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
            for key in rule.get(field, ())
            if key in own
        ]
        selector = {**selector, "matchExpressions": [*selector.get("matchExpressions", ()), *added]}
    there = namespace in listed or selects(chosen, {NAME: namespace})
    return there and selects(selector, other["metadata"]["labels"])


def allowed(pod: Json, node: Json, nodes: list[Json], placed: Sequence[tuple[Json, str]]) -> bool:
    labels = {each["metadata"]["name"]: each["metadata"]["labels"] for each in nodes}
    own = labels[node["metadata"]["name"]]

    def rules(of: Json, kind: str) -> list[Json]:
        return list(of["spec"]["affinity"][kind][REQUIRED])

    def together(rule: Json, where: str) -> bool:
        key = rule["topologyKey"]
        return key in own and labels[where].get(key) == own[key]

    repelled = any(
        speaks_of(rule, other, pod) and together(rule, where)
        for other, where in placed
        for rule in rules(other, "podAntiAffinity")
    ) or any(
        speaks_of(rule, pod, other) and together(rule, where)
        for other, where in placed
        for rule in rules(pod, "podAntiAffinity")
    )
    near = rules(pod, "podAffinity")
    friends = [where for other, where in placed if all(speaks_of(rule, pod, other) for rule in near)]
    alone = not any(rule["topologyKey"] in labels[where] for where in friends for rule in near)
    beside = all(any(together(rule, where) for where in friends) for rule in near)
    first = alone and all(speaks_of(rule, pod, pod) for rule in near)
    return not repelled and all(rule["topologyKey"] in own for rule in near) and (beside or first)


KEYS = st.sampled_from(["app", "tier"])
LABELS = st.dictionaries(KEYS, st.sampled_from("ab"), max_size=2)
EXPRESSIONS = st.builds(
    lambda key, operator, value: {"key": key, "operator": operator, **({"values": [value]} if "I" in operator else {})},
    KEYS,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.sampled_from("ab"),
)
SELECTORS = st.one_of(
    st.just({}),
    st.builds(lambda labels: {"matchLabels": labels}, LABELS),
    st.builds(lambda each: {"matchExpressions": [each]}, EXPRESSIONS),
)
TERMS = st.builds(
    lambda key, selector, more: term(key, selector, **more),
    st.sampled_from(["zone", "host"]),
    st.one_of(st.none(), SELECTORS),
    st.fixed_dictionaries(
        {},
        optional={
            "namespaces": st.lists(st.sampled_from("xy"), max_size=2),
            "namespaceSelector": st.sampled_from([{}, {"matchLabels": {NAME: "x"}}]),
            "matchLabelKeys": st.just(["tier"]),
            "mismatchLabelKeys": st.just(["app"]),
        },
    ),
)
PODS = st.builds(
    lambda labels, anti, near, namespace: pod_of("", labels, anti, near, namespace),
    LABELS,
    st.lists(TERMS, max_size=3),
    st.lists(TERMS, max_size=2),
    st.sampled_from("xy"),
)


@given(PODS, st.lists(st.sampled_from(["z1", "z2", ""]), min_size=1, max_size=4), st.lists(PODS, max_size=5), st.data())
def test_pods_are_kept_apart_and_together_as_by_kube_scheduler(
    pod: Json, zones: list[str], others: list[Json], data: st.DataObject
) -> None:
    nodes = nodes_of(*zones)
    placed = []
    for i, other in enumerate(others):
        node = data.draw(st.integers(0, len(nodes) - 1))
        placed.append(({**other, "metadata": {**other["metadata"], "uid": f"r{i}"}}, f"n{node}"))
    found = {name: reason is None for name, reason in answers(pod, nodes, placed).items()}
    assert found == {each["metadata"]["name"]: allowed(pod, each, nodes, placed) for each in nodes}


def repelling(name: str, count: int) -> Pod:
    """Return a pod with so many anti-affinity terms, of which none speaks of another pod here."""
    terms = [term("host", app(f"nobody-{i}")) for i in range(count)]
    return msgspec.convert(pod_of(name, {"app": name}, terms), Pod)


def hosts(count: int) -> list[Node]:
    return msgspec.convert(nodes_of(*("" for _ in range(count))), list[Node])


def test_rules_of_a_pod_that_are_too_many_are_not_judged() -> None:
    cluster, plain = Predicates(hosts(1)), repelling("plain", 0)
    everybody = term("host", app("plain"))
    many = pod_of("many", {}, [everybody, *(term("host", app(f"nobody-{i}")) for i in range(MOST_PARTS))])
    for body, expected in ((pod_of("one", {}, [everybody]), EXISTING_ANTI_AFFINITY), (many, None)):
        cluster.place(msgspec.convert(body, Pod), "n0")
        assert list(cluster.reasons(plain).values()) == [expected]
        cluster.remove(body["metadata"]["uid"])


def test_what_terms_cost_others_is_bounded() -> None:
    """However many terms a tenant's pods have, and however large the terms are."""
    costs = []
    for terms in (MOST_PARTS + 1, 4 * MOST_PARTS):
        cluster = Predicates(hosts(1))
        for i in range(100):
            cluster.place(repelling(f"p{i}", terms), "n0")
        costs.append(calls(lambda: cluster.reasons(repelling("plain", 0))))  # noqa: B023 - called at once
    assert costs[0] == costs[1]


def test_the_terms_of_a_pod_that_is_gone_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicates, "MOVES_KEPT", 4)
    cluster, asking, gone = Predicates(hosts(1)), repelling("plain", 0), repelling("gone", 3)
    terms = anti_affinity_terms(gone)
    before = sys.getrefcount(terms)
    cluster.place(repelling("stays", 1), "n0")
    for each in (gone, *(repelling(f"p{i}", 1) for i in range(8))):
        cluster.place(each, "n0")
        cluster.reasons(asking)
        cluster.remove(each.metadata.uid)
        cluster.reasons(asking)
    assert sys.getrefcount(terms) == before
