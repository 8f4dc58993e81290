"""What became of each workload, in words, and pods that have no place for one reason."""

import msgspec
import pytest

from gputile.api.core import OwnerReference, Pod
from gputile.core.devices.allocation import Allocation
from gputile.tools.simulator.outcomes import workload_name, workload_of, workload_outcomes
from gputile.tools.simulator.simulation import PodOutcome
from tests.fakes.corebuilders import pod, share

pytestmark = pytest.mark.requirement("B4")


GIB = 1024


def owned(found: Pod, kind: str, name: str, **labels: str) -> Pod:
    owner = OwnerReference(api_version="apps/v1", kind=kind, name=name, uid="u", controller=True)
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
    assert list(found.allocations) == [gets]


def test_mig_instances_are_named() -> None:
    (found,) = workload_outcomes([PodOutcome(pod("p", asks={"nvidia.com/mig-1g.5gb": 2}), "n", None, "")])
    assert list(found.allocations) == ["2 x nvidia.com/mig-1g.5gb"]
