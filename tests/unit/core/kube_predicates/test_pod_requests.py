"""What a pod takes, as kube-scheduler counts it: ``PodRequests`` of k8s.io/component-helpers, and the API server's
defaults before it (``SetDefaults_Pod``)."""

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Pod, PodSpec
from gputile.core.kube_predicates.pod_requests import HostResources, host_allocatable, host_request, pod_requests
from tests.costs.calls import calls
from tests.fakes.corebuilders import gpu_node

GIB = 2**30


def spec_of(*containers: dict[str, Any], **fields: Any) -> PodSpec:
    return msgspec.convert(
        {"containers": [{"name": f"c{i}", "resources": r} for i, r in enumerate(containers)], **fields}, PodSpec
    )


@pytest.mark.parametrize(
    ("containers", "fields", "expected"),
    [
        ([{"requests": {"cpu": "1"}}], {"overhead": {"cpu": "250m", "memory": "1Gi"}}, {"cpu": 1250, "memory": GIB}),
        ([], {"overhead": {"cpu": "0.5m"}}, {"cpu": 1}),
        ([{"requests": {"cpu": "1"}}], {"resources": None}, {"cpu": 1000}),
        ([{"requests": {"cpu": "1"}}], {"resources": {}}, {"cpu": 1000}),
        ([{"requests": {"cpu": "1"}}], {"resources": {"requests": {"cpu": "3"}}}, {"cpu": 3000}),
        ([{}], {"resources": {"limits": {"cpu": "3"}}}, {"cpu": 3000}),
        # A limit of the pod is its request only where no container asks, be it for nothing.
        ([{"requests": {"cpu": "1"}}], {"resources": {"limits": {"cpu": "3"}}}, {"cpu": 1000}),
        ([{"limits": {"cpu": "2"}}], {"resources": {"limits": {"cpu": "3"}}}, {"cpu": 2000}),
        ([{"requests": {"cpu": "0"}}], {"resources": {"limits": {"cpu": "3"}}}, {}),
        ([{}], {"resources": {"limits": {"cpu": "3"}, "requests": {"cpu": "2"}}}, {"cpu": 2000}),
        # Huge pages are never overcommitted.
        (
            [{"limits": {"hugepages-2Mi": "2Mi"}}],
            {"resources": {"limits": {"hugepages-2Mi": "4Mi"}}},
            {"hugepages-2Mi": 4 * 2**20},
        ),
        (
            [{"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}}],
            {"resources": {"requests": {"memory": "3Gi"}}, "overhead": {"memory": "1Gi", "cpu": "1"}},
            {"cpu": 2000, "memory": 4 * GIB, "nvidia.com/gpu": 1},
        ),
        # The API server lets neither in; what it does not know counts for nothing.
        ([{}], {"resources": {"requests": {"nvidia.com/gpu": "1", "ephemeral-storage": "1Gi"}}}, {}),
    ],
)
def test_what_a_pod_asks_for_as_a_whole_and_its_overhead(
    containers: list[dict[str, Any]], fields: dict[str, Any], expected: dict[str, int]
) -> None:
    """KEP-2837 and pod overhead."""
    assert pod_requests(spec_of(*containers, **fields)) == expected
    mib = -(-expected.get("memory", 0) // 2**20)
    assert host_request(Pod(spec=spec_of(*containers, **fields))) == HostResources(expected.get("cpu", 0), mib)


def test_overhead_comes_on_top_of_the_peak_and_a_whole_pods_request_replaces_it() -> None:
    first = {"name": "first", "resources": {"requests": {"cpu": "4"}}}
    app = {"requests": {"cpu": "1"}}
    assert host_request(Pod(spec=spec_of(app, initContainers=[first], overhead={"cpu": "1"}))).cpu == 5000
    whole = {"requests": {"cpu": "6"}}
    assert (
        host_request(Pod(spec=spec_of(app, initContainers=[first], resources=whole, overhead={"cpu": "1"}))).cpu == 7000
    )


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["cpu", "memory", "x.io/y"]), st.sampled_from([0, 1, 9, 2**20, 3 * 2**20 + 1])),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([{}, {"overhead": {"cpu": 1, "memory": 1}}, {"resources": {"limits": {"cpu": 4, "memory": 3}}}]),
    st.sampled_from([{}, {"restartPolicy": "Always"}]),
)
def test_cpu_and_memory_alone_are_those_among_all_that_a_pod_takes(
    containers: list[dict[str, int]], fields: dict[str, Any], policy: dict[str, Any]
) -> None:
    first = {"name": "first", "resources": {"limits": containers[0]}, **policy}
    spec = spec_of(*({"requests": each} for each in containers), initContainers=[first], **fields)
    takes = pod_requests(spec)
    assert host_request(Pod(spec=spec)) == HostResources(
        min(takes.get("cpu", 0), 2**30), -(-takes.get("memory", 0) // 2**20)
    )


def test_cpu_and_memory_are_read_without_the_other_resources() -> None:
    """A pod may name tens of thousands of them, which cost a service as many readings."""
    spec = spec_of({"limits": {"cpu": "1"} | {f"x.io/{i}": f"{i}k" for i in range(1000)}})
    assert calls(lambda: host_request(Pod(spec=spec))) < 100
    assert host_request(Pod(spec=spec)).cpu == 1000


@pytest.mark.parametrize(
    ("allocatable", "expected"),
    [
        ({}, HostResources(7, 8)),
        ({"cpu": "2"}, HostResources(2000, 8)),
        ({"memory": "3Gi"}, HostResources(7, 3072)),
        ({"cpu": "1.5", "memory": "1048577"}, HostResources(1500, 1)),
        ({"cpu": "-1", "memory": "lots"}, HostResources(0, 0)),
    ],
)
def test_what_a_node_says_of_cpu_and_memory(allocatable: dict[str, str], expected: HostResources) -> None:
    assert host_allocatable(gpu_node(allocatable=allocatable), HostResources(7, 8)) == expected


def test_nothing_of_the_length_of_names_and_amounts_is_kept() -> None:
    """Mutating webhooks are asked before the API server looks at either."""
    tracemalloc.start()
    try:
        for i in range(100):
            name = "x" * 100_000 + str(i)
            assert pod_requests(spec_of({"limits": {name: "5", "cpu": "1" * 100_000 + str(i)}})) == {name: 5}
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000
