"""What a pod takes, as kube-scheduler counts it: ``PodRequests`` of k8s.io/component-helpers, and the API server's
defaults before it (``SetDefaults_Pod``)."""

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.core import Pod, PodSpec, PodStatus
from gputile.core.kube_predicates.pod_requests import HostResources, host_allocatable, host_request, pod_requests
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.events import PodApplied
from tests.costs.calls import calls
from tests.fakes.corebuilders import gpu_node, ledger_of
from tests.unit.core.kube_predicates.builders import all_said

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


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "hugepages-2Mi", "x.io/y"]), st.integers(0, 9), max_size=4)


def stored(containers: list[dict[str, int]], resources: dict[str, dict[str, int]]) -> dict[str, int]:
    """Return the requests of the whole pod as the API server stores them (defaultPodRequests); containers have theirs.

    Without a limit of the pod nothing is filled in.
    """
    requests = dict(resources["requests"])
    if not resources["limits"]:
        return requests
    for name in ("cpu", "memory"):
        if any(name in container for container in containers):
            requests.setdefault(name, sum(container.get(name, 0) for container in containers))
    return {name: n for name, n in resources["limits"].items() if name != "x.io/y"} | requests


@given(st.lists(amounts, min_size=1, max_size=3), amounts, amounts, amounts)
def test_a_manifest_takes_what_it_takes_once_it_is_stored(
    containers: list[dict[str, int]], limits: dict[str, int], requests: dict[str, int], overhead: dict[str, int]
) -> None:
    asked = [{"requests": container} for container in containers]
    whole = {"limits": limits, "requests": requests}
    as_stored = {**whole, "requests": stored(containers, whole)}
    as_written = pod_requests(spec_of(*asked, resources=whole, overhead=overhead))
    assert as_written == pod_requests(spec_of(*asked, resources=as_stored, overhead=overhead))
    for name in ("cpu", "memory", "hugepages-2Mi", "x.io/y"):
        total = sum(container.get(name, 0) for container in containers)
        if name != "x.io/y":
            total = as_stored["requests"].get(name, total)
        factor = 1000 if name == "cpu" else 1
        assert as_written.get(name, 0) == factor * (total + overhead.get(name, 0))


INFEASIBLE = {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
DEFERRED = {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]}


def held(name: str, in_use: str, kept: str = "") -> dict[str, Any]:
    """Return what the kubelet says of the CPU of a container."""
    allocated = {"allocatedResources": {"cpu": kept}} if kept else {}
    return {"name": name, "resources": {"requests": {"cpu": in_use}}, **allocated}


@pytest.mark.parametrize(
    ("asked", "fields", "status", "expected"),
    [
        ("1", {}, {}, 1000),
        ("1", {}, {"containerStatuses": [held("c0", "4")]}, 4000),
        ("1", {}, {"containerStatuses": [held("c0", "2", "4")]}, 4000),
        ("5", {}, {"containerStatuses": [held("c0", "2", "4")]}, 5000),
        ("5", {}, {"containerStatuses": [held("c0", "2", "4")], **DEFERRED}, 5000),
        ("5", {}, {"containerStatuses": [held("c0", "2", "4")], **INFEASIBLE}, 4000),
        ("5", {}, {"containerStatuses": [held("c0", "2")], **INFEASIBLE}, 2000),
        # Without what runs nothing counts of what is kept, and nobody else's status does.
        ("1", {}, {"containerStatuses": [{"name": "c0", "allocatedResources": {"cpu": "4"}}]}, 1000),
        ("1", {}, {"containerStatuses": [held("other", "4")]}, 1000),
        # Sidecars are resized, and init containers that end are not.
        (
            "1",
            {"initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]},
            {"initContainerStatuses": [held("i", "4")]},
            5000,
        ),
        (
            "1",
            {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1"}}}]},
            {"initContainerStatuses": [held("i", "4")]},
            1000,
        ),
        ("1", {"resources": {"requests": {"cpu": "2"}}}, held("", "3", "4"), 4000),
        ("1", {"resources": {"requests": {"cpu": "5"}}}, {**held("", "3", "4"), **INFEASIBLE}, 4000),
        ("1", {"resources": {"requests": {"memory": "2"}}}, held("", "3", "4"), 1000),
    ],
)
def test_a_pod_that_is_resized_takes_the_most_of_what_it_asks_for_and_has(
    asked: str, fields: dict[str, Any], status: dict[str, Any], expected: int
) -> None:
    """``determineEffectiveRequests`` of k8s.io/component-helpers (KEP-1287)."""
    pod = resized(asked, fields, status)
    assert pod_requests(pod.spec, pod.status).get("cpu", 0) == expected
    assert host_request(pod).cpu == expected


def test_what_runs_counts_on_its_node_as_kube_scheduler_counts_it() -> None:
    """For kube-scheduler's own check, and among what the ledger knows of pods with GPUs and without."""
    new = Pod(spec=spec_of({"requests": {"cpu": "3"}}))
    node = gpu_node("n", mode="share", allocatable={"cpu": "4", "pods": "9"})
    for limits in ({}, {"aliyun.com/gpu-mem": "3"}):
        running = resized("1", {"nodeName": "n"}, {"containerStatuses": [held("c0", "2")]}, limits)
        before = msgspec.structs.replace(running, status=PodStatus())
        cluster = Predicates([node])
        cluster.place(running, "n")
        assert all_said(cluster.reasons(new)) == {"n": "Insufficient cpu"}
        ledger = ledger_of(node)
        for pod, left in ((before, 3000), (running, 2000), (before, 3000)):
            ledger.apply(PodApplied(pod))
            assert int(ledger.node_arrays.cpu.max()) == left


def test_a_service_keeps_no_status_that_says_what_the_spec_says() -> None:
    pod = resized("1", {}, {"containerStatuses": [held("c0", "1", "1"), held("c1", "1")]})
    assert [each.name for each in pod.status.container_statuses] == ["c1"]
    assert not resized("1", {}, {"containerStatuses": [held("c0", "1"), {"name": "c1"}]}).status.resized


def resized(cpu: str, fields: dict[str, Any], status: dict[str, Any], limits: dict[str, str] | None = None) -> Pod:
    resources = {"requests": {"cpu": cpu, **(limits or {})}, "limits": limits or {}}
    spec = {"containers": [{"name": "c0", "resources": resources}], **fields}
    return msgspec.convert({"metadata": {"name": "p", "uid": "p"}, "spec": spec, "status": status}, Pod)
