"""The table of the values that fields take names fields that there are, and its checks take what it says."""

from typing import Any

import pytest

from gputile.api.kubernetes import kubernetes_kinds
from gputile.tools.simulator.rules.values.field_rules import broken_values, field_rules

RULES = [(type_name, field, rule) for type_name, rules in field_rules().items() for field, rule in rules.items()]


@pytest.mark.parametrize(("type_name", "field", "rule"), RULES, ids=[f"{each[0]}.{each[1]}" for each in RULES])
def test_a_rule_is_for_a_field_that_there_is(type_name: str, field: str, rule: Any) -> None:
    written = kubernetes_kinds().types[type_name][field].rstrip("!")
    value: Any = {"a": "b"} if written.startswith("{}") else 1 if "int" in written else "a"
    value = [value] if written.startswith("[]") else value
    for _, why in broken_values(type_name, {"operator": "In", field: value}):
        assert why.startswith(("Invalid value", "Unsupported value", "Required value"))


@pytest.mark.parametrize(
    ("type_name", "value", "broken"),
    [
        ("core.v1.ContainerPort", {"containerPort": 0, "hostPort": 0, "name": ""}, ["p.containerPort"]),
        ("[]core.v1.EnvVar", [{"name": "a"}, {"name": "a=b"}], ["p[1].name"]),
        ("core.v1.HostAlias", {"ip": "x", "hostnames": ["a", "A"]}, ["p.ip", "p.hostnames[1]"]),
        ("core.v1.StorageOSVolumeSource", {"volumeNamespace": ""}, ["p.volumeName"]),
        ("core.v1.StorageOSVolumeSource", {"volumeName": "A"}, ["p.volumeName"]),
        ("meta.v1.LabelSelector", {"matchLabels": {"a b": "c d"}}, ["p.matchLabels", "p.matchLabels"]),
        ("apps.v1.DeploymentSpec", {"replicas": -1, "template": {"spec": {"hostname": "A"}}}, ["p.replicas"]),
        ("autoscaling.v2.MetricIdentifier", {"name": "a", "selector": {"matchLabels": {"": ""}}}, []),
        ("any", {"name": "A"}, []),
    ],
)
def test_what_is_wrong_is_told_with_its_place(type_name: str, value: Any, broken: list[str]) -> None:
    assert [path for path, _ in broken_values(type_name, value, "p")] == broken


def test_what_the_server_writes_is_not_judged() -> None:
    assert list(broken_values("policy.v1.PodDisruptionBudget", {"status": {"conditions": []}, "spec": {}})) == []
