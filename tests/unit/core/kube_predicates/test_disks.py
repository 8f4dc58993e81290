"""Two pods of a node never have one disk that only one can have, as kube-scheduler's plugin VolumeRestrictions says."""

import pytest

from gputile.core.kube_predicates.predicates import Predicates
from tests.unit.core.kube_predicates.words import all_said
from tests.unit.tools.simulator.builders import node, pod

pytestmark = pytest.mark.requirement("B4")

TAKEN = "node(s) had no available disk"


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
    expected = None if free else TAKEN
    assert all_said(predicates.reasons(pod(asked))) == {"n": expected, "m": None}
    assert [each.text for each in predicates.obstacles(pod(asked), "n")] == ([] if free else [TAKEN])
    assert predicates.capacity_bound(pod(asked), "n") >= 1 if free else predicates.capacity_bound(pod(asked), "n") == 0
    predicates.remove(first.metadata.uid)
    assert all_said(predicates.reasons(pod(asked))) == {"n": None, "m": None}


@pytest.mark.parametrize(("spec", "alone"), [(GCE, True), (AWS_READ, True), (GCE_READ, False)])
def test_how_many_pods_of_a_template_fit_a_node(spec: str, alone: bool) -> None:
    assert (Predicates([node("n")]).capacity_bound(pod(spec), "n") == 1) is alone
