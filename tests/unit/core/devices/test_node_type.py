"""What an empty node of a described type takes: as the ledger and the placement say of the node itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.config.section import ConfigurationError
from gputile.api.config.v1alpha1 import Configuration, load_configuration
from gputile.api.core import Pod, PodSpec
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU, Mode
from gputile.core.devices.node_type import NodeType, is_placeholder, node_types_of
from gputile.core.devices.request import RequestError, parse_request
from gputile.core.refusal import NodeTypeRule
from gputile.core.scheduling.placement_engine import PlacementEngine
from tests.fakes.corebuilders import ledger_of, pod, request_of

pytestmark = pytest.mark.requirement("U8")


def configured(*types: dict[str, object], unit: str = "1GiB", enabled: bool = True) -> Configuration:
    scaling = {"enabled": enabled, "nodeTypes": list(types)}
    return load_configuration({"gpuMemoryUnit": unit, "autoscaling": scaling})


def described(mode: str = "cgpu", count: int = 4, memory: str = "15GiB", label: str = "pool=gpu") -> dict[str, object]:
    return {"label": label, "mode": mode, "gpus": {"count": count, "memory": memory}}


def node_type(mode: str = "cgpu", count: int = 4, memory: str = "15GiB", unit: str = "1GiB") -> NodeType:
    return node_types_of(configured(described(mode, count, memory), unit=unit))[0]


@given(
    mode=st.sampled_from([each.value for each in Mode]),
    count=st.integers(1, 8),
    memory=st.integers(200, 40_000),
    unit=st.sampled_from([64, 128, 200]),
    asked=st.fixed_dictionaries(
        {},
        optional={
            GPU_MEMORY: st.integers(1, 800),
            GPU_CORE: st.integers(1, 20).map(lambda part: 5 * part),
            WHOLE_GPU: st.integers(1, 9),
            TOPOLOGY_GPU: st.integers(1, 9),
        },
    ),
    gpus=st.none() | st.integers(1, 9),
    pods_unit=st.sampled_from([64, 128, 200]),
)
def test_a_type_takes_what_the_placement_puts_on_an_empty_node_of_it(
    mode: str, count: int, memory: int, unit: int, asked: dict[str, int], gpus: int | None, pods_unit: int
) -> None:
    configuration = configured(described(mode, count, f"{memory}MiB"), unit=f"{unit}MiB")
    kind = node_types_of(configuration)[0]
    try:
        request = parse_request(pod("p", asks=asked, count=gpus), pods_unit)
    except RequestError:
        return
    if request is None:
        return
    engine = PlacementEngine(ledger_of(kind.node("n"), configuration=configuration))
    assert (kind.refusal(request) is not None) is (engine.refusal(request, "n") is not None)


@pytest.mark.parametrize(
    ("mode", "asked", "refusal"),
    [
        ("cgpu", {"mem": 15}, None),
        ("cgpu", {"mem": 20}, "its GPUs have 15 units of 1024 MiB; the pod needs 20480 MiB on one GPU"),
        ("cgpu", {"mem": 60, "count": 4}, None),
        ("cgpu", {"mem": 10, "count": 5}, "it has 4 GPUs; the pod needs 5"),
        ("cgpu", {"mem": 1, "core": 5}, "its mode cgpu serves GPU memory alone"),
        ("core_mem", {"mem": 1}, "its mode core_mem serves GPU memory together with compute"),
        ("default", {"mem": 1}, "its mode default does not serve aliyun.com/gpu-mem"),
    ],
)
def test_a_refusal_names_the_rule(mode: str, asked: dict[str, int], refusal: str | None) -> None:
    found = node_type(mode).refusal(request_of(pod("p", asks=asked)))
    assert (found and found.text) == refusal


def test_a_pod_of_another_unit_is_refused() -> None:
    found = node_type(unit="128MiB").refusal(request_of(pod("p", mem=1)))
    assert found is not None
    assert (found.rule, found.there, found.wanted) == (NodeTypeRule.UNIT, 128, 1024)
    assert "counts in 1024 MiB" in found.text


def test_there_are_no_types_where_it_is_switched_off() -> None:
    assert node_types_of(configured(described(), enabled=False)) == ()


def test_a_node_is_of_the_type_whose_label_it_has() -> None:
    kind, other = node_types_of(configured(described(label="pool=a"), described(label="pool=b")))
    assert (kind.has(kind.node("n")), other.has(kind.node("n"))) == (True, False)


def test_only_who_names_the_scheduler_of_placeholders_is_one() -> None:
    labelled = pod("p", mem=1)
    labelled.metadata.labels["gputile.io/placeholder"] = "true"
    assert not is_placeholder(labelled)
    assert is_placeholder(Pod(metadata=labelled.metadata, spec=PodSpec(scheduler_name="gputile-placeholder")))


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ({"aliyun.com/gpu-mem": 8}, "remove it, because gpus and mode define it"),
        ({"hugepages-2Mi": "many"}, "many"),
    ],
)
def test_resources_that_are_no_further_ones_are_refused(resources: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=r"autoscaling.nodeTypes\[0\].resources") as error:
        configured(described() | {"resources": resources})
    assert told in str(error.value)
