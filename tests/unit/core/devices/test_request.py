"""What a pod asks is parsed once; every broken rule is named."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from gputile.api.core import Container, ObjectMeta, Pod, PodSpec, ResourceRequirements
from gputile.api.well_known import GPU_MEMORY, ISOLATION, LEGACY_GPU, MEMORY_UNIT_ANNOTATION, TOPOLOGY_GPU, WHOLE_GPU
from gputile.core.devices.request import ContainerRequest, Phase, RequestError, RequestKind, Shape, parse_request
from tests.fakes.corebuilders import Amount, container, pod, request_of

Json = dict[str, Any]


def shared(gpus: int, mib: int, percent: int, unit_mib: int, group: str = "default") -> Shape:
    return Shape(RequestKind.SHARED, gpus, mib, percent, group, unit_mib)


def stamped(unit: str, **limits: int) -> Pod:
    return pod(annotations={MEMORY_UNIT_ANNOTATION: unit}, asks=limits)


@pytest.mark.requirement("U1", "U2", "U3", "U5", "M8", "M10", "M1", "G5", "L3", "T2")
@pytest.mark.parametrize(
    ("asking", "unit", "shape"),
    [
        pytest.param(pod(mem=3), 1024, shared(1, 3072, 0, 1024), id="U1 one unit is 1 GiB"),
        pytest.param(pod(mem=16), 128, shared(1, 2048, 0, 128), id="U2 U3 16 x 128 MiB is 2 GiB"),
        pytest.param(stamped("128", mem=16), 1024, shared(1, 2048, 0, 128), id="U5 the stamp stands"),
        pytest.param(pod(mem="1k"), 64, shared(1, 64000, 0, 64), id="quantities as the kubelet writes"),
        pytest.param(pod(mem=2, core=30), 1024, shared(1, 2048, 30, 1024), id="M8 memory and compute"),
        pytest.param(pod(mem=8, count=4), 1024, shared(4, 2048, 0, 1024), id="M10 spread evenly"),
        pytest.param(pod(mem=8, core=20, count=2), 1024, shared(2, 4096, 10, 1024), id="M10 compute too"),
        pytest.param(
            pod(asks={WHOLE_GPU: 2}),
            1024,
            Shape(RequestKind.WHOLE, 2, trust_group="default"),
            id="M1 G5 whole GPUs, which time-slicing shares",
        ),
        pytest.param(
            pod(asks={LEGACY_GPU: 2}), 1024, Shape(RequestKind.WHOLE, 2, trust_group="default"), id="L3 the old name"
        ),
        pytest.param(pod(asks={TOPOLOGY_GPU: 4}), 1024, Shape(RequestKind.TOPOLOGY, 4), id="T2 connected GPUs"),
        pytest.param(
            pod("p", container("a", asks={LEGACY_GPU: 2}), container("b", asks={LEGACY_GPU: 3})),
            1024,
            Shape(
                RequestKind.WHOLE,
                5,
                trust_group="default",
                containers=(ContainerRequest("a", Phase.APP, gpus=2), ContainerRequest("b", Phase.APP, gpus=3)),
            ),
            id="L3 containers add up",
        ),
        pytest.param(pod(mem=1, namespace="x"), 1024, shared(1, 1024, 0, 1024, "x"), id="G5 namespace is trust"),
    ],
)
def test_requests_have_one_normal_form(asking: Pod, unit: int, shape: Shape) -> None:
    assert request_of(asking, unit).shape == shape


def _term(*expressions: tuple[str, str]) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator} for key, operator in expressions]}


A10, A100 = "model.gputile.io/NVIDIA-A10", "model.gputile.io/NVIDIA-A100"


@pytest.mark.parametrize(
    ("meta", "selector", "terms", "models"),
    [
        ({}, {A10: "2"}, [], {"NVIDIA-A10"}),
        ({}, {}, [_term((A10, "Exists")), _term((A100, "Gt"))], {"NVIDIA-A10", "NVIDIA-A100"}),
        ({}, {}, [_term((A10, "Exists")), _term(("zone", "Exists"))], set()),
        ({}, {}, [_term((A100, "Exists"), (A10, "DoesNotExist"))], {"NVIDIA-A100"}),
        ({"annotations": {"gputile.io/gpu-model": "NVIDIA A100"}}, {A10: "2"}, [], {"NVIDIA-A100"}),
        ({"labels": {"gputile.io/gpu-model": "NVIDIA-A100"}}, {}, [], {"NVIDIA-A100"}),
    ],
)
def test_a_pod_gets_gpus_of_the_models_that_it_names(
    meta: Json, selector: dict[str, str], terms: list[Json], models: set[str]
) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    affinity = {"nodeAffinity": required} if terms else None
    asking = pod(mem=1)
    asking.spec = msgspec.convert({"nodeSelector": selector, "affinity": affinity}, PodSpec)
    asking.spec.containers = pod(mem=1).spec.containers
    asking.metadata = msgspec.convert(meta, ObjectMeta)
    assert request_of(asking).shape.models == models


@pytest.mark.requirement("U4")
@pytest.mark.parametrize("limits", [{}, {"cpu": 1}, {"mem": 0}, {WHOLE_GPU: 0, "mem": "0"}])
def test_a_pod_without_gpus_asks_nothing_u4(limits: dict[str, int]) -> None:
    assert parse_request(pod("p", container(asks=limits)), 1024) is None


def requesting(requests: dict[str, Amount], limits: dict[str, Amount]) -> Pod:
    return pod("p", Container(name="main", resources=ResourceRequirements(limits=limits, requests=requests)))


@pytest.mark.requirement("G2", "M8", "M10", "M2", "L3", "U2")
@pytest.mark.parametrize(
    ("asking", "says"),
    [
        pytest.param(pod(mem="0.5"), "0.5 is not a whole number", id="G2 fraction"),
        pytest.param(pod(mem=-1), "-1 is negative", id="G2 negative"),
        pytest.param(pod(mem="x"), "'x' is not a quantity", id="G2 garbage"),
        pytest.param(pod(mem="16Gi"), "counts units of 1024 MiB.*; for 16384 MiB write 16$", id="G2 bytes for units"),
        pytest.param(pod(mem="5G", count=2), "counts units.*; for 4769 MiB write 5$", id="G2 bytes on several GPUs"),
        pytest.param(pod(mem=2**50), "are more than any GPU has$", id="G2 bytes that no GPU has"),
        pytest.param(
            requesting({WHOLE_GPU: 1}, {}), "a request and no limit: set it in limits", id="G2 only a request"
        ),
        pytest.param(requesting({GPU_MEMORY: 1}, {GPU_MEMORY: 2}), "requests 1 and limits 2", id="G2 unequal"),
        pytest.param(pod(core=10), "requires aliyun.com/gpu-mem", id="M8 compute alone"),
        pytest.param(pod(mem=1, core=7), "not a multiple of 5: ask for 5 or 10", id="M8 steps"),
        pytest.param(pod(mem=1, core=101), "not a multiple of 5: ask for 100$", id="M8 no more than whole GPUs"),
        pytest.param(pod(mem=1, core=3), "not a multiple of 5: ask for 5$", id="M8 at least 5"),
        pytest.param(pod(mem=3, count=2), r"cannot be divided evenly among 2 GPUs .*: ask for 2 or 4", id="M10 memory"),
        pytest.param(
            pod(mem=1, count=2), r"cannot be divided evenly among 2 GPUs .*: ask for 2$", id="M10 nothing lower to ask"
        ),
        pytest.param(
            pod(mem=4, core=5, count=2),
            r"gpu-core.percentage is 5, which cannot be divided evenly among 2 GPUs",
            id="M10 compute",
        ),
        pytest.param(pod(mem=4, count=0), "not a number of GPUs from 1 to 16", id="M10 no GPU"),
        pytest.param(pod(mem=34, count=17), "not a number of GPUs from 1 to 16", id="M10 more than limits can name"),
        pytest.param(pod(mem=4, count="two"), "'two', not a number of GPUs", id="M10 no number"),
        pytest.param(pod(mem=4, asks={WHOLE_GPU: 1}), "can use one kind of GPU resource", id="M2 two kinds"),
        pytest.param(
            pod("p", container("a", asks={WHOLE_GPU: 1}), container("b", asks={TOPOLOGY_GPU: 1})),
            "aliyun.com/gpu and nvidia.com/gpu",
            id="M2 two kinds in two containers",
        ),
        pytest.param(pod(asks={WHOLE_GPU: 1, LEGACY_GPU: 1}), "is the old name of nvidia.com/gpu", id="L3 both names"),
        pytest.param(pod(asks={WHOLE_GPU: 65}), "65 GPUs are more than a node can have", id="G2 too many"),
        pytest.param(stamped("0", mem=1), "not a unit of 64 MiB or more", id="U2 stamp of nothing"),
        pytest.param(stamped("-5", mem=1), "not a unit of 64 MiB or more", id="U2 negative stamp"),
        pytest.param(stamped("63", mem=1), "not a unit of 64 MiB or more", id="U2 small stamp"),
        (pod(mem=1, annotations={ISOLATION: "compute"}), "'compute': write memory, or memory,compute, or none"),
        (pod(mem=1, annotations={ISOLATION: "memory,compute"}), "add aliyun.com/gpu-core.percentage, or write memory"),
    ],
)
def test_every_broken_rule_is_named(asking: Pod, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        parse_request(asking, 1024)


@pytest.mark.parametrize("text", ["compute", "memory,compute"])
def test_a_later_word_on_isolation_hides_nothing_that_a_bound_pod_holds(text: str) -> None:
    assert parse_request(pod(mem=1, node="n", annotations={ISOLATION: text}), 1024)


def test_an_error_names_the_container_and_where_it_is() -> None:
    with pytest.raises(RequestError, match=r"spec\.initContainers\[warm\]\.resources"):
        parse_request(pod("p", container("main"), init=[container("warm", mem="0.5")]), 1024)


quantities = st.one_of(st.integers(-2, 2**70), st.floats(), st.text(max_size=6), st.integers(0, 9).map(str))
limits = st.dictionaries(st.sampled_from(["mem", "core", WHOLE_GPU, LEGACY_GPU, TOPOLOGY_GPU, "cpu"]), quantities)
containers = st.builds(lambda given: container("c", asks=given), limits)


def test_a_pod_of_very_many_containers_is_not_read() -> None:
    """Nobody waits while tens of thousands are; no kubelet would start as many."""
    many = pod("p", *(container(f"c{i}", mem=1) for i in range(1025)))
    with pytest.raises(RequestError, match="the pod has 1025 containers, more than the 1024"):
        parse_request(many, 1024)
