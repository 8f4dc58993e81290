"""What became of each workload, in words, and pods that have no place for one reason."""

import msgspec
import pytest

from gputile.api.core import ObjectMeta, OwnerReference, Pod
from gputile.core.devices.allocation import Allocation
from gputile.tools.simulator.outcomes import together, workload_name, workload_of, workload_outcomes
from gputile.tools.simulator.simulation import PodOutcome
from tests.fakes.corebuilders import pod, share

pytestmark = pytest.mark.requirement("B4")


def outcome(name: str, owner: str = "", reason: str = "full", node: str | None = None) -> PodOutcome:
    owners = (OwnerReference(kind="ReplicaSet", name=owner, uid=owner, controller=True),) if owner else ()
    return PodOutcome(Pod(metadata=ObjectMeta(name=name, namespace="n", owner_references=owners)), node, None, reason)


def test_groups_stand_where_their_first_pod_is() -> None:
    told = together(
        [
            outcome("a", "w"),
            outcome("b", "w", node="x"),
            outcome("c"),
            outcome("d", "w"),
            outcome("e", "v"),
            outcome("f", "w", "small"),
            outcome("g"),
        ]
    )
    assert [(each.outcome.pod.metadata.name, each.others) for each in told] == [
        ("a", ["d"]),
        ("b", []),
        ("c", []),
        ("e", []),
        ("f", []),
        ("g", []),
    ]


GIB = 1024


def owned(found: Pod, kind: str, name: str, **labels: str) -> Pod:
    owner = OwnerReference(kind=kind, name=name, uid="u", controller=True)
    text = {key.replace("_", "-"): value for key, value in labels.items()}
    return msgspec.structs.replace(
        found, metadata=msgspec.structs.replace(found.metadata, owner_references=(owner,), labels=text)
    )


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (pod("alone"), "pod/alone"),
        (owned(pod("p"), "StatefulSet", "db"), "statefulset/db"),
        (owned(pod("p"), "ReplicaSet", "web-5d4f", pod_template_hash="5d4f"), "deployment/web"),
        (owned(pod("p"), "ReplicaSet", "web-5d4f"), "replicaset/web-5d4f"),
        (owned(pod("p"), "PyTorchJob", "train"), "pytorchjob/train"),
    ],
)
def test_the_workload_of_a_pod(found: Pod, name: str) -> None:
    assert workload_name(workload_of(found)) == name


@pytest.mark.parametrize(
    ("allocation", "gets"),
    [
        (Allocation((share("G-0", GIB),), {}, GIB), "1 GiB"),
        (Allocation((share("G-0", 4 * GIB, 25),), {}, GIB), "4 GiB and 25 % of compute"),
        (Allocation((share("G-0", 4 * GIB), share("G-1", 4 * GIB)), {}, GIB), "4 GiB on each of 2 GPUs"),
        (Allocation((share("G-0", GIB, 100),), {}, GIB, whole=True), "1 GPU"),
        (Allocation((share("G-0", GIB), share("G-1", GIB)), {}, GIB, whole=True), "2 GPUs"),
        (None, "GPUs of another plugin"),
    ],
)
def test_what_a_pod_gets(allocation: Allocation | None, gets: str) -> None:
    (found,) = workload_outcomes([PodOutcome(pod("p", mem=1), "n", allocation, "")])
    assert list(found.gets) == [gets]
