"""The predicates refuse what kube-scheduler's own filters refuse, in its words."""

from typing import Any

import msgspec
import numpy as np
import pytest

from gputile.api.core import Node, Pod
from gputile.core.kube_predicates.predicates import Predicates
from tests.unit.core.kube_predicates.builders import all_said, node, pod, said

SELECTOR = "node(s) didn't match Pod's node affinity/selector"

GPUS = {"nvidia.com/gpu": 2}


def reason(pod_: Pod, *nodes: Node) -> str | None:
    return said(Predicates(nodes).reasons(pod_)[nodes[0].metadata.name])


def expression(key: str, operator: str, *values: str) -> str:
    return (
        "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
        f"[{{matchExpressions: [{{key: {key}, operator: {operator}, values: {list(values)}}}]}}]}}}}}}"
    )


@pytest.mark.parametrize(
    ("spec", "described", "expected"),
    [
        ("{}", {}, None),
        ("{}", {"unschedulable": True}, "node(s) were unschedulable"),
        ("tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists}]", {"unschedulable": True}, None),
        ("nodeSelector: {a: b}", {}, SELECTOR),
        ("nodeSelector: {a: b}", {"labels": {"a": "b"}}, None),
        ("nodeSelector: {a: ''}", {}, SELECTOR),
        ("{}", {"taints": [{"key": "nvidia.com/gpu"}]}, "node(s) had untolerated taint {nvidia.com/gpu: }"),
        ("{}", {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}, "node(s) had untolerated taint {k: v}"),
        ("{}", {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}, None),
        ("tolerations: [{key: k, value: v}]", {"taints": [{"key": "k", "value": "v"}]}, None),
        (
            "tolerations: [{key: k, value: w}]",
            {"taints": [{"key": "k", "value": "v"}]},
            "node(s) had untolerated taint {k: v}",
        ),
        (
            "tolerations: [{key: k, operator: Exists, effect: NoExecute}]",
            {"taints": [{"key": "k"}]},
            "node(s) had untolerated taint {k: }",
        ),
        ("tolerations: [{operator: Exists}]", {"taints": [{"key": "k"}]}, None),
        ("containers: [{name: c, resources: {requests: {cpu: 1500m}}}]", {"cpu": 1}, "Insufficient cpu"),
        ("containers: [{name: c, resources: {requests: {cpu: 1}}}]", {"cpu": "1000m"}, None),
        ("containers: [{name: c, resources: {limits: {memory: 2Gi}}}]", {"memory": "1Gi"}, "Insufficient memory"),
        (
            "containers: [{name: c, resources: {limits: {memory: 2Gi}, requests: {memory: 1Gi}}}]",
            {"memory": "1Gi"},
            None,
        ),
        ("containers: [{name: c, resources: {limits: {x.io/y: 1}}}]", {}, "Insufficient x.io/y"),
        ("containers: [{name: c, resources: {limits: {x.io/y: 1}}}]", {"x.io/y": 1}, None),
        ("containers: [{name: c, resources: {limits: {x.io/y: 0}}}]", {}, None),
        ("containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]", GPUS, None),
        ("containers: [{name: c, resources: {limits: {nvidia.com/gpu: 3}}}]", GPUS, "Insufficient nvidia.com/gpu"),
        (
            "containers: [{name: c, resources: {limits: {alpha.kubernetes.io/nvidia-gpu: 3}}}]",
            GPUS,
            "Insufficient nvidia.com/gpu",
        ),
        (
            "containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: 31, cpu: 500}}}]",
            {"aliyun.com/gpu-mem": 30},
            "Insufficient cpu",
        ),
        (
            "containers: [{name: c, resources: {limits: {aliyun.com/gpu-mem: 31}}}]",
            {"aliyun.com/gpu-mem": 30},
            "Insufficient aliyun.com/gpu-mem",
        ),
        (
            "{runtimeClassName: k, overhead: {cpu: 500m}, containers: [{name: c, resources: {requests: {cpu: 500m}}}]}",
            {"cpu": 1},
            None,
        ),
        (
            "{runtimeClassName: k, overhead: {cpu: 501m}, containers: [{name: c, resources: {requests: {cpu: 500m}}}]}",
            {"cpu": 1},
            "Insufficient cpu",
        ),
        ("resources: {requests: {cpu: 2}}", {"cpu": 1}, "Insufficient cpu"),
        ("{}", {"pods": 0}, "Too many pods"),
    ],
)
def test_one_pod_and_one_node(spec: str, described: dict[str, Any], expected: str | None) -> None:
    assert reason(pod(spec), node(**described)) == expected


@pytest.mark.parametrize(("name", "expected"), [("n", None), ("other", "node(s) didn't match the requested node name")])
def test_a_pod_that_names_its_node(name: str, expected: str | None) -> None:
    found = pod("{}")
    named = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, node_name=name))
    assert reason(named, node()) == expected


@pytest.mark.parametrize(
    ("operator", "values", "labels", "matches"),
    [
        ("Gt", ["5"], {"k": "6"}, True),
        ("Gt", ["5"], {"k": "5"}, False),
        ("Gt", ["5"], {"k": "six"}, False),
        ("Gt", ["5"], {}, False),
        ("Lt", ["5"], {"k": "4"}, True),
        ("Lt", ["5"], {"k": "5"}, False),
    ],
)
def test_operators(operator: str, values: list[str], labels: dict[str, str], matches: bool) -> None:
    answer = reason(pod(expression("k", operator, *values)), node(labels=labels))
    assert answer == (None if matches else SELECTOR)


def test_match_fields_name_a_node() -> None:
    spec = expression("metadata.name", "In", "n").replace("Expressions", "Fields")
    assert all_said(Predicates([node("n"), node("m")]).reasons(pod(spec))) == {"n": None, "m": SELECTOR}


def test_a_term_that_asks_nothing_holds_nowhere() -> None:
    spec = expression("k", "Exists").replace("{matchExpressions", "{}, {matchExpressions")
    assert reason(pod(spec), node()) == SELECTOR


def test_what_a_pod_prefers() -> None:
    spec = (
        "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: ["
        "{weight: 40, preference: {matchExpressions: [{key: a, operator: Exists}]}}, "
        "{weight: 10, preference: {matchExpressions: [{key: b, operator: Exists}]}}]}}"
    )
    soft = {"key": "k", "effect": "PreferNoSchedule"}
    nodes = [
        node("x", {"a": "", "b": ""}, taints=[soft]),
        node("y", {"b": ""}),
        node("z", taints=[soft, soft | {"key": "l"}]),
    ]
    predicates = Predicates(nodes)
    assert predicates.scores(pod(spec), np.arange(3)).tolist() == [200 + 150, 40 + 300, 0]
    assert predicates.scores(pod(), np.arange(2)).tolist() == [0, 300]
    assert predicates.scores(pod("tolerations: [{operator: Exists}]"), np.arange(1)).tolist() == [300]
    assert predicates.scores(pod(), np.arange(0)).tolist() == []


def zone_nodes(*zones: str | None) -> list[Node]:
    return [node(f"n{i}", {"zone": zone} if zone else {}) for i, zone in enumerate(zones)]


def inter_pod(field: str, selector: str = "matchLabels: {app: x}", more: str = "") -> str:
    return (
        f"affinity: {{{field}: {{requiredDuringSchedulingIgnoredDuringExecution: "
        f"[{{topologyKey: zone, labelSelector: {{{selector}}}{more}}}]}}}}"
    )


def answers(nodes: list[Node], placed: list[tuple[Pod, str]], asked: Pod) -> list[str | None]:
    predicates = Predicates(nodes)
    for other, name in placed:
        predicates.place(other, name)
    return list(all_said(predicates.reasons(asked)).values())


def spread(more: str = "") -> str:
    return f"topologySpreadConstraints: [{{topologyKey: zone, labelSelector: {{matchLabels: {{app: x}}}}{more}}}]"


@pytest.mark.parametrize(
    ("zones", "on", "more", "open_"),
    [
        (["a", "b"], [], "", [True, True]),
        (["a", "b"], ["n0"], "", [False, True]),
        (["a", "b"], ["n0"], ", maxSkew: 2", [True, True]),
        (["a", "b", None], ["n0"], "", [False, True, False]),
        (["a", "b"], ["n0"], ", whenUnsatisfiable: ScheduleAnyway", [True, True]),
        (["a"], [], ", minDomains: 2", [True]),
        (["a"], ["n0"], "", [True]),
        (["a"], ["n0"], ", minDomains: 2", [False]),
    ],
)
def test_topology_spread(zones: list[str | None], on: list[str], more: str, open_: list[bool]) -> None:
    placed = [(pod(name=f"q{i}", labels={"app": "x"}), name) for i, name in enumerate(on)]
    asked = pod(spread(more), labels={"app": "x"})
    found = answers(zone_nodes(*zones), placed, asked)
    assert [reason is None for reason in found] == open_
    texts = {
        "node(s) didn't match pod topology spread constraints",
        "node(s) didn't match pod topology spread constraints (missing required label)",
        None,
    }
    assert set(found) <= texts


def test_spread_does_not_count_pods_that_are_going() -> None:
    """kube-scheduler's countPodsMatchSelector leaves them out; affinity and resources count them."""
    going = pod(name="q", labels={"app": "x"})
    going.metadata.deletion_timestamp = "2030-01-01T00:00:00Z"
    nodes = [node(f"n{i}", {"zone": zone}, pods=1) for i, zone in enumerate("ab")]
    assert answers(nodes, [(going, "n0")], pod(spread(), labels={"app": "x"})) == ["Too many pods", None]
    nodes = zone_nodes("a", "b")
    assert answers(nodes, [(going, "n0")], pod(spread(), labels={"app": "x"})) == [None, None]
    apart = pod(inter_pod("podAntiAffinity"), labels={"app": "y"})
    assert answers(nodes, [(going, "n0")], apart) == ["node(s) didn't match pod anti-affinity rules", None]


def test_spread_by_an_empty_selector_counts_nobody_but_the_pod_itself() -> None:
    """countPodsMatchSelector again: an empty selector, which selects every pod elsewhere, counts none here."""
    nodes, placed = zone_nodes("a", "b"), [(pod(name=f"q{i}", labels={"rev": "1"}), "n0") for i in range(3)]
    everybody = spread().replace("{matchLabels: {app: x}}", "{}")
    assert answers(nodes, placed, pod(everybody)) == [None, None]
    keyed = everybody.replace("labelSelector", "matchLabelKeys: [rev], labelSelector")
    assert answers(nodes, placed, pod(keyed, labels={"rev": "1"}))[0] is not None


def test_spread_counts_only_nodes_that_the_pod_could_use() -> None:
    nodes = [node("n0", {"zone": "a", "ok": "1"}), node("n1", {"zone": "b"})]
    placed = [(pod(name="q", labels={"app": "x"}), "n0")]
    honor, ignore = (
        pod(f"{spread(more)}\nnodeSelector: {{ok: '1'}}", labels={"app": "x"})
        for more in ("", ", nodeAffinityPolicy: Ignore")
    )
    assert answers(nodes, placed, honor)[0] is None
    assert answers(nodes, placed, ignore)[0] == "node(s) didn't match pod topology spread constraints"


def test_finished_pods_take_nothing() -> None:
    predicates = Predicates([node(pods=1)])
    done = pod()
    done.status.phase = "Succeeded"
    predicates.place(done, "n")
    assert all_said(predicates.reasons(pod(name="next"))) == {"n": None}


TAKEN = "node(s) didn't have free ports for the requested pod ports"


def port(*, sidecar: bool = False, init: bool = False, **fields: object) -> str:
    """Return the spec of a pod that takes a port."""
    written = f"ports: [{{containerPort: 80, {', '.join(f'{key}: {value}' for key, value in fields.items())}}}]"
    others = f"initContainers: [{{name: i, {'restartPolicy: Always, ' if sidecar else ''}{written}}}]"
    return others if sidecar or init else f"containers: [{{name: c, {written}}}]"


@pytest.mark.parametrize(
    ("there", "asked", "free"),
    [
        (port(hostPort=80), port(hostPort=80), False),
        (port(hostPort=80), port(hostPort=81), True),
        (port(hostPort=80), port(), True),
        (port(), port(), True),
        (port(hostPort=80), port(hostPort=80, protocol="UDP"), True),
        (port(hostPort=80), port(hostPort=80, protocol="TCP"), False),
        (port(hostPort=80, hostIP="10.0.0.1"), port(hostPort=80, hostIP="10.0.0.2"), False),
        (port(sidecar=True, hostPort=80), port(hostPort=80), False),
        (port(init=True, hostPort=80), port(hostPort=80), True),
    ],
)
def test_a_port_is_taken_once(there: str, asked: str, free: bool) -> None:
    predicates = Predicates([node("n"), node("m")])
    predicates.place(pod(there, "there"), "n")
    expected = None if free else TAKEN
    assert all_said(predicates.reasons(pod(asked))) == {"n": expected, "m": None}
    assert [each.text for each in predicates.obstacles(pod(asked), "n")] == ([] if free else [TAKEN])
    assert said(predicates.reason(pod(asked), "n")) == expected
    predicates.set_node(node("n", {"new": "label"}))
    assert all_said(predicates.reasons(pod(asked))) == {"n": expected, "m": None}


def test_a_port_stands_before_amounts() -> None:
    predicates = Predicates([node("n", pods=1)])
    predicates.place(pod(port(hostPort=80), "first"), "n")
    assert all_said(predicates.reasons(pod(port(hostPort=80)))) == {"n": TAKEN}
    assert [each.text for each in predicates.obstacles(pod(port(hostPort=80)), "n")] == [TAKEN, "Too many pods"]
