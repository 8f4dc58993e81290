"""Which scheduler a GPU pod is given to: with a second scheduler, the documents' manifests run as they are."""

from dataclasses import replace

import pytest

from tests.unit.core.admission.builders import POLICY, mutated, pod

pytestmark = pytest.mark.requirement("U3")


@pytest.mark.parametrize(
    ("named", "resource", "scheduler", "expected"),
    [
        ("default-scheduler", "aliyun.com/gpu-mem", "gputile-scheduler", "gputile-scheduler"),
        ("default-scheduler", "nvidia.com/gpu", "gputile-scheduler", "gputile-scheduler"),
        ("another", "nvidia.com/gpu", "gputile-scheduler", "another"),
        ("default-scheduler", "nvidia.com/gpu", "", "default-scheduler"),
        ("default-scheduler", "nvidia.com/mig-1g.10gb", "gputile-scheduler", "default-scheduler"),
        ("default-scheduler", "cpu", "gputile-scheduler", "default-scheduler"),
    ],
)
def test_gpu_pods_that_name_no_scheduler_get_gputiles(named: str, resource: str, scheduler: str, expected: str) -> None:
    stored = mutated(pod({resource: 1}, schedulerName=named), replace(POLICY, scheduler=scheduler))
    assert stored["spec"]["schedulerName"] == expected
    assert mutated(stored, replace(POLICY, scheduler=scheduler)) == stored, "a pod may pass twice"
