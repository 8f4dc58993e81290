"""The configuration: valid values, and an error that names the field and the rule for every other."""

from typing import Any

import pytest

from gputile.api.config.section import ConfigurationError
from gputile.api.config.v1alpha1 import Configuration, load_configuration
from gputile.api.well_known import GpuTimePolicy, parse_policy
from tests.fakes.corebuilders import pod


@pytest.mark.requirement("U1", "U7", "M9")
def test_an_empty_file_is_the_defaults_u1_u7_m9() -> None:
    configuration = load_configuration(None)
    assert (configuration.unit_mib, configuration.max_pods_per_gpu, configuration.placement) == (1024, 16, "binpack")


@pytest.mark.requirement("U2")
@pytest.mark.parametrize(("unit", "mib"), [("64MiB", 64), ("128MiB", 128), ("1GiB", 1024), ("2Gi", 2048)])
def test_units_from_64_mib_are_valid_u2(unit: str, mib: int) -> None:
    assert load_configuration({"gpuMemoryUnit": unit}).unit_mib == mib


def scaling(*changes: dict[str, Any]) -> dict[str, Any]:
    types = [{"label": "pool=gpu", "gpus": {"memory": "15GiB"}} | each for each in changes]
    return {"autoscaling": {"enabled": True, "nodeTypes": types}}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"gpuMemoryUnit": "63MiB"}, "smallest valid unit is 64MiB"),
        ({"gpuMemoryUnit": "0MiB"}, "smallest valid unit is 64MiB"),
        ({"gpuMemoryUnit": "1"}, "gpuMemoryUnit"),
        ({"gpuMemoryUnit": "999999999999GiB"}, "largest valid unit is 16777216MiB"),
        ({"maxPodsPerGpu": 0}, "maxPodsPerGpu"),
        ({"maxPodsPerGpu": True}, "maxPodsPerGpu"),
        ({"placement": "random"}, "placement"),
        ({"placment": "spread"}, "placment"),
        ({"apiVersion": "gputile.io/v2"}, "apiVersion"),
        ({"trust": {"by": "user"}}, "trust.by"),
        ({"trust": {"groups": {"a": ["x"], "b": ["x"]}}}, "namespace x is in a and in b"),
        ({"gpuTime": {"policy": 6}}, "gpuTime.policy: '6' is not a policy of GPU time; valid are average"),
        ({"gpuTime": {"policy": True}}, "gpuTime.policy: must be a string or a whole number, is true"),
        ({"gangs": {"holdSeconds": 0}}, "gangs.holdSeconds: must be 1 to 86400, is 0"),
        (scaling({"label": "pool"}), r'nodeTypes\[0\].label: "pool" is not KEY=VALUE of a node label'),
        (scaling({"label": "pool=gpu\n"}), r"nodeTypes\[0\].label: .* is not KEY=VALUE of a node label"),
        (scaling({"label": "pool=gpu-"}), r'nodeTypes\[0\].label: "pool=gpu-" is not KEY=VALUE of a node label'),
        (scaling({"label": "a=" + "b" * 64}), "is not KEY=VALUE of a node label"),
        (scaling({"label": "a-/b=c"}), "is not KEY=VALUE of a node label"),
        (scaling({"resources": {"cpu": "lots"}}), r"nodeTypes\[0\].resources.cpu: 'lots' is not a quantity"),
        (scaling({"resources": {"cpu": "-4"}}), r"nodeTypes\[0\].resources.cpu: -4 is negative"),
        (scaling({"resources": {"cpu": -4}}), r"nodeTypes\[0\].resources.cpu"),
        (scaling({"resources": {"nvidia.com/gpu": 4}}), "resources has nvidia.com/gpu: remove it, because gpus"),
        (scaling({"gpus": {"memory": "15"}}), "gpus.memory"),
        (scaling({"gpus": {"memory": "15GiB", "count": 65}}), "gpus.count"),
        (scaling({"gpus": {"memory": "100MiB"}}), "a GPU is smaller than one unit of 1GiB"),
        (scaling({"gpus": {"memory": "16385GiB"}}), "gpus.memory is 16385GiB: a GPU has at most 16777216 MiB"),
        (scaling({"labels": {"pool": "other"}}), r"nodeTypes\[0\].labels.pool is other, but label requires gpu"),
        (scaling({"labels": {"ack.node.gpu.schedule": "share"}}), "schedule is share, but mode requires default"),
        (scaling({"labels": {"x y": "z"}}), "'x y' is not a valid label key"),
        (scaling({"labels": {"x": "z z"}}), "labels.x is 'z z', which is not a valid label value"),
        (scaling({"labels": {"x": "z" * 64}}), "which is not a valid label value"),
        (scaling({}, {}), "pool=gpu is also the label of another node type"),
        ([], "must be a mapping, is a list"),
        ("text", 'must be a mapping, is "text"'),
    ],
)
def test_what_is_not_valid_names_the_field(data: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load_configuration(data)


def test_labels_of_a_node_type_that_say_the_same_are_valid() -> None:
    labels = {"pool": "gpu", "ack.node.gpu.schedule": "cgpu", "example.com/zone": "", "n_0.1": "A-b"}
    types = load_configuration(scaling({"labels": labels, "mode": "cgpu"})).autoscaling.node_types
    assert types[0].labels == labels


@pytest.mark.requirement("G5")
@pytest.mark.parametrize(
    ("trust", "groups"),
    [
        ({}, {"a": "a", "b": "b", "c": "c"}),
        ({"by": "cluster"}, {"a": "*", "b": "*", "c": "*"}),
        ({"groups": {"team": ["a", "b"]}}, {"a": "group:team", "b": "group:team", "c": "c"}),
    ],
)
def test_trust_groups_are_namespaces_unless_configured_g5(trust: dict[str, Any], groups: dict[str, str]) -> None:
    configuration: Configuration = load_configuration({"trust": trust})
    assert {name: configuration.trust_group(pod(namespace=name)) for name in groups} == groups


@pytest.mark.requirement("G4")
def test_a_policy_of_gpu_time_is_named_by_its_name_or_by_its_number_as_text_or_not() -> None:
    policies = [load_configuration({"gpuTime": {"policy": each}}).gpu_time.policy for each in ("weighted", "2", 2)]
    assert {parse_policy(each) for each in policies} == {GpuTimePolicy.WEIGHTED}


@pytest.mark.requirement("G4", "G5")
@pytest.mark.parametrize("name", ["Team", "a_b", "-a", "a" * 64, "", "a.b", "team\n"])
def test_what_no_namespace_can_be_called_is_refused(name: str) -> None:
    """No pod would ever be in it, so the writer meant another one."""
    for data, path in (
        ({"gpuTime": {"namespaceMaxWeight": {name: 7}}}, "gpuTime.namespaceMaxWeight"),
        ({"trust": {"groups": {"g": [name]}}}, r"trust\.groups\.g\[0\]"),
    ):
        with pytest.raises(ConfigurationError, match=f"{path}.*: .* is not the name of a namespace$"):
            load_configuration(data)


@pytest.mark.requirement("G4")
@pytest.mark.parametrize("time", [{"maxWeight": 0}, {"maxWeight": 1001}, {"namespaceMaxWeight": {"team": 0}}])
def test_a_limit_of_weights_is_a_weight_g4(time: dict[str, object]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"gpuTime\.(maxWeight|namespaceMaxWeight\.team): must be 1 to 1000, is \d+"
    ):
        load_configuration({"gpuTime": time})
    found = load_configuration({"gpuTime": {"maxWeight": 3, "namespaceMaxWeight": {"team": 7}}}).gpu_time
    assert (found.most_weight("team"), found.most_weight("other")) == (7, 3)
