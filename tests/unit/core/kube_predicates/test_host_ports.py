"""Two pods of a node never have one port of it, as kube-scheduler's plugin NodePorts sees to it."""

import pytest

from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.placement.steps import at_once
from tests.unit.core.kube_predicates.words import all_said, said
from tests.unit.tools.simulator.builders import node, pod

pytestmark = pytest.mark.requirement("B4")

TAKEN = "node(s) didn't have free ports for the requested pod ports"


def port(*, network: bool = False, sidecar: bool = False, init: bool = False, **fields: object) -> str:
    """Return the spec of a pod that takes a port."""
    written = f"ports: [{{containerPort: 80, {', '.join(f'{key}: {value}' for key, value in fields.items())}}}]"
    others = f"initContainers: [{{name: i, {'restartPolicy: Always, ' if sidecar else ''}{written}}}]"
    containers = others if sidecar or init else f"containers: [{{name: c, {written}}}]"
    return f"hostNetwork: {str(network).lower()}\n{containers}"


@pytest.mark.parametrize(
    ("there", "asked", "free"),
    [
        (port(hostPort=80), port(hostPort=80), False),
        (port(hostPort=80), port(hostPort=81), True),
        (port(hostPort=80), port(), True),
        (port(), port(), True),
        (port(hostPort=80), port(hostPort=80, protocol="UDP"), True),
        (port(hostPort=80), port(hostPort=80, protocol="TCP"), False),
        (port(hostPort=80), port(hostPort=80, hostIP="10.0.0.1"), False),
        (port(hostPort=80, hostIP="10.0.0.1"), port(hostPort=80), False),
        (port(hostPort=80, hostIP="10.0.0.1"), port(hostPort=80, hostIP="0.0.0.0"), False),
        (port(hostPort=80, hostIP="10.0.0.1"), port(hostPort=80, hostIP="10.0.0.1"), False),
        (port(hostPort=80, hostIP="10.0.0.1"), port(hostPort=80, hostIP="10.0.0.2"), True),
        (port(network=True), port(network=True), False),
        (port(network=True), port(hostPort=80), False),
        (port(network=True), port(), True),
        (port(sidecar=True, hostPort=80), port(hostPort=80), False),
        (port(hostPort=80), port(sidecar=True, network=True), False),
        (port(init=True, hostPort=80), port(hostPort=80), True),
    ],
)
def test_a_port_is_taken_once(there: str, asked: str, free: bool) -> None:
    predicates = Predicates([node("n"), node("m")])
    predicates.place(pod(there, "there"), "n")
    expected = None if free else TAKEN
    assert all_said(predicates.reasons(pod(asked))) == {"n": expected, "m": None}
    assert [each.text for each in predicates.obstacles(pod(asked), "n")] == ([] if free else [TAKEN])
    assert said(at_once(predicates.reason(pod(asked), "n"))) == expected
    predicates.put_node(node("n", {"new": "label"}))
    assert all_said(predicates.reasons(pod(asked))) == {"n": expected, "m": None}


def test_a_port_stands_before_amounts() -> None:
    predicates = Predicates([node("n", pods=1)])
    predicates.place(pod(port(hostPort=80), "first"), "n")
    assert all_said(predicates.reasons(pod(port(hostPort=80)))) == {"n": TAKEN}
    assert [each.text for each in predicates.obstacles(pod(port(hostPort=80)), "n")] == [TAKEN, "Too many pods"]


def test_one_pod_of_a_template_with_a_port_fits_a_node() -> None:
    predicates = Predicates([node("n"), node("m", {"zone": "a"})])
    asking = pod(port(hostPort=80))
    assert predicates.capacity_bound(asking, "n") == 1
    predicates.place(pod(port(hostPort=80), "first"), "n")
    assert [predicates.capacity_bound(asking, name) for name in "nm"] == [0, 1]
    assert predicates.capacity_bound(pod(), "n") > 1
