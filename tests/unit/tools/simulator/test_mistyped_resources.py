"""Resources that no node offers, and whose names are nearly right."""

import pytest

from gputile.api.core import Node, NodeStatus
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, GPU_RESOURCES, WHOLE_GPU
from gputile.tools.simulator.fields import MistypedResources


def told(*names: str, offered: tuple[str, ...] = ()) -> list[str]:
    containers = [{"resources": {"limits": {name: 1}}} for name in names]
    node = Node(status=NodeStatus(allocatable=dict.fromkeys(offered, "1")))
    return list(MistypedResources([node]).in_spec("", {"containers": containers}))


@pytest.mark.parametrize(("name", "meant"), [("aliyun.com/gpu-memm", GPU_MEMORY), ("nvidia/gpu", WHOLE_GPU)])
def test_a_name_that_is_nearly_right_is_told(name: str, meant: str) -> None:
    (said,) = told(name)
    assert said == f'spec.containers[0].resources.limits: no node offers "{name}"; did you mean {meant}?'


def test_hamis_names_are_told_of_a_pod_that_runs() -> None:
    said = list(MistypedResources([]).among(["nvidia.com/gpumem", "nvidia.com/gpucores"]))
    assert [each.rpartition("; ")[2] for each in said] == [f"did you mean {name}?" for name in (GPU_MEMORY, GPU_CORE)]


@pytest.mark.parametrize("name", [*GPU_RESOURCES, "cpu", "hugepages-2Mi", "amd.com/gpu", "nvidia.com/mig-1g.5gb"])
def test_a_name_that_is_right_or_of_something_else_is_not(name: str) -> None:
    assert told(name) == []
