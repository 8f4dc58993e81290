"""Two pods of a node never have one port or disk of it, as NodePorts and VolumeRestrictions of kube-scheduler say."""

import pytest

from gputile.core.kube_predicates.predicates import Predicates
from tests.unit.core.kube_predicates.builders import all_said, node, pod, said

pytestmark = pytest.mark.requirement("B4")

TAKEN = "node(s) didn't have free ports for the requested pod ports"
NO_DISK = "node(s) had no available disk"


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
        (port(hostPort=80), port(hostPort=80, hostIP="10.0.0.1"), False),
        (port(hostPort=80, hostIP="10.0.0.1"), port(hostPort=80), False),
        (port(hostPort=80, hostIP="10.0.0.1"), port(hostPort=80, hostIP="0.0.0.0"), False),
        (port(hostPort=80, hostIP="10.0.0.1"), port(hostPort=80, hostIP="10.0.0.1"), False),
        (port(hostPort=80, hostIP="10.0.0.1"), port(hostPort=80, hostIP="10.0.0.2"), True),
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


def disk(source: str) -> str:
    return f"volumes: [{{name: v, {source}}}]"


def rbd(monitors: str, image: str = "i", more: str = "") -> str:
    return disk(f"rbd: {{monitors: [{monitors}], image: {image}{more}}}")


GCE, GCE_READ = (disk(f"gcePersistentDisk: {{pdName: d, readOnly: {each}}}") for each in ("false", "true"))
AWS, AWS_READ = (disk(f"awsElasticBlockStore: {{volumeID: d, readOnly: {each}}}") for each in ("false", "true"))
ISCSI, ISCSI_READ = (
    disk(f"iscsi: {{iqn: 'iqn.2026-01.io.example:a', targetPortal: 'a:1', lun: 0, readOnly: {each}}}")
    for each in ("false", "true")
)
READ = ", readOnly: true"


@pytest.mark.parametrize(
    ("there", "asked", "free"),
    [
        (GCE, GCE, False),
        (GCE, GCE_READ, False),
        (GCE_READ, GCE, False),
        (GCE_READ, GCE_READ, True),
        (GCE, GCE.replace(": d", ": e"), True),
        (AWS, AWS, False),
        (AWS_READ, AWS_READ, False),
        (AWS, AWS.replace(": d", ": e"), True),
        (AWS, GCE, True),
        (ISCSI, ISCSI, False),
        (ISCSI_READ, ISCSI_READ, True),
        (rbd("a, b"), rbd("b, c"), False),
        (rbd("a"), rbd("b"), True),
        (rbd("a"), rbd("a", "j"), True),
        (rbd("a"), rbd("a", more=", pool: p"), True),
        (rbd("a"), rbd("a", more=", pool: rbd"), False),
        (rbd("a", more=READ), rbd("a", more=READ), True),
        (disk("emptyDir: {}"), disk("emptyDir: {}"), True),
    ],
)
def test_a_disk_is_for_one_pod_unless_all_only_read_it(there: str, asked: str, free: bool) -> None:
    predicates = Predicates([node("n"), node("m")])
    first = pod(there, "there")
    predicates.place(first, "n")
    expected = None if free else NO_DISK
    assert all_said(predicates.reasons(pod(asked))) == {"n": expected, "m": None}
    assert [each.text for each in predicates.obstacles(pod(asked), "n")] == ([] if free else [NO_DISK])
    assert predicates.capacity_bound(pod(asked), "n") >= 1 if free else predicates.capacity_bound(pod(asked), "n") == 0
    predicates.remove(first.metadata.uid)
    assert all_said(predicates.reasons(pod(asked))) == {"n": None, "m": None}


@pytest.mark.parametrize(("spec", "alone"), [(GCE, True), (AWS_READ, True), (GCE_READ, False)])
def test_how_many_pods_of_a_template_fit_a_node(spec: str, alone: bool) -> None:
    assert (Predicates([node("n")]).capacity_bound(pod(spec), "n") == 1) is alone
