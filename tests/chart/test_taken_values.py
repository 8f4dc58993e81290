"""The chart takes exactly the values whose configuration gputile's own reader takes, and refuses others by name."""

import itertools
import json
import re
from typing import Any

import pytest
import yaml
from docs.generator.schemas import schema_of

from gputile.api.config.section import ConfigurationError
from gputile.api.config.v1alpha1 import load_configuration
from gputile.api.well_known import GPU_RESOURCES
from tests.chart.helmcli import CHART, HelmFailed, of_kind, render

pytestmark = pytest.mark.requirement("U2", "U9", "U11")

VALUES: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
CONFIGURATION = schema_of("configuration")
SECTIONS = ("autoscaling", "controller", "gangs", "gpuTime", "preemption", "trust", "features")
# Of names of properties the schema's error does not say whose they are: the chart's templates check them.
UNSAID = ("description", "title", "default", "required", "propertyNames")


def rules(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema without its words, references followed and enumerations in order and in one.

    The chart has texts and numbers apart: Helm 4.2 takes "0" and 0 for equal, and refuses an enumeration with both.
    """
    if isinstance(schema, list):
        return [rules(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return rules(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    parts = [schema] if "enum" in schema else schema.get("anyOf", [])
    if parts and all("enum" in part for part in parts):
        return {"enum": sorted(itertools.chain(*(part["enum"] for part in parts)), key=repr)}
    named = {"properties": {k: rules(v, definitions) for k, v in schema.get("properties", {}).items()}}
    said = {k: rules(v, definitions) for k, v in schema.items() if k not in (*UNSAID, "properties")}
    return said | (named if "properties" in schema else {})


@pytest.mark.parametrize("field", ["gpuMemoryUnit", "placement", "maxPodsPerGpu", *SECTIONS])
def test_a_field_of_the_configuration_has_one_rule_in_the_chart_and_in_the_reader(field: str) -> None:
    """The chart's sections have values beside them, which no configuration has."""
    read = rules(CONFIGURATION["$defs"]["Configuration"]["properties"][field], CONFIGURATION["$defs"])
    taken = rules(VALUES["properties"][field], VALUES["definitions"])
    if field in SECTIONS:
        read, taken = read["properties"], {name: taken["properties"].get(name) for name in read["properties"]}
    assert taken == read


def node_types(*changes: dict[str, Any]) -> dict[str, Any]:
    plain = {"label": "pool=gpu", "gpus": {"count": 4, "memory": "15GiB"}, "mode": "cgpu"}
    return {
        "autoscaling": {"enabled": True, "mostNodes": 3, "waitSeconds": 60, "nodeTypes": [plain | c for c in changes]}
    }


def verdicts(values: dict[str, Any]) -> tuple[str, str]:
    """Return why Helm refuses values, and why the reader refuses them as a configuration; "" for who takes them."""
    try:
        objects = render(values)
    except HelmFailed as refused:
        helm = str(refused)
    else:
        helm = ""
        text = of_kind(objects, "ConfigMap")["gputile"]["data"]["configuration.yaml"]
        written = yaml.safe_load(text)
        assert {name: written[name] for name in values} == values, "what is rendered says something else"
    try:
        load_configuration(values)
    except ConfigurationError as error:
        return helm, str(error)
    return helm, ""


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"gpuMemoryUnit": "17592186044417TiB"}, "gpuMemoryUnit"),
        ({"gpuMemoryUnit": "63MiB"}, "the smallest valid unit is 64MiB"),
        (
            {
                "gpuTime": {
                    "policy": "weak",
                    "quantumMs": 30,
                    "longestWaitMs": 1000,
                    "maxWeight": 1,
                    "namespaceMaxWeight": {"Bad Name": 5},
                }
            },
            'gpuTime.namespaceMaxWeight: "Bad Name" is not the name of a namespace',
        ),
        (node_types({"gpus": {"memory": "zzz"}}), "/autoscaling/nodeTypes/0/gpus/memory"),
        (
            node_types({}, {}),
            "autoscaling.nodeTypes[1].label: pool=gpu is also the label of another node type: give each",
        ),
        (node_types({"gpus": {"memory": "32MiB"}}), "gpus.memory is 32MiB: a GPU is smaller than one unit of 1GiB"),
        (node_types({"gpus": {"memory": "17TiB"}}), "gpus.memory is 17TiB: a GPU has at most 16777216 MiB"),
        *(
            (node_types({"resources": {each: 3}}), f"[0].resources has {each}: remove it, because gpus")
            for each in GPU_RESOURCES
        ),
        (node_types({"labels": {"x y": "z"}}), 'autoscaling.nodeTypes[0].labels: "x y" is not a valid label key'),
        (node_types({"labels": {"pool": "other"}}), "[0].labels.pool is other, but label requires gpu"),
        (node_types({"labels": {"ack.node.gpu.schedule": "share"}}), "schedule is share, but mode requires cgpu"),
        ({"trust": {"by": "namespace", "groups": {"a": ["x"], "b": ["x"]}}}, "namespace x is in a and in b"),
    ],
)
def test_what_every_component_refuses_helm_refuses_first_by_name(values: dict[str, Any], named: str) -> None:
    helm, reader = verdicts(values)
    assert reader
    assert named in helm


@pytest.mark.parametrize(
    "values",
    [
        {"gpuMemoryUnit": " 0128 MiB"},
        node_types({"gpus": {"memory": "23028 MiB"}}, {"label": "example.com/pool=b", "mode": "default"}),
        node_types({"labels": {"pool": "gpu", "ack.node.gpu.schedule": "cgpu", "example.com/zone": ""}}),
        node_types({"taints": [{"key": "a", "value": "b", "effect": "NoExecute"}, {"key": "c"}]}),
        node_types({"resources": {"vpc.amazonaws.com/efa": 4, "hugepages-2Mi": "4Gi", "cpu": "96"}}),
        {
            "gpuTime": {
                "policy": "weak",
                "quantumMs": 30,
                "longestWaitMs": 1000,
                "maxWeight": 1,
                "namespaceMaxWeight": {"team-a": 5},
            }
        },
    ],
)
def test_what_the_components_take_helm_takes(values: dict[str, Any]) -> None:
    assert verdicts(values) == ("", "")


PODS = [
    ({"image.tag": "bad tag"}, "/image/tag"),
    ({"image.repository": "X/Y"}, "/image/repository"),
    ({"scheduler.image.repository": ""}, "scheduler.image.repository is empty"),
    ({"image.pullSecrets": [{"name": ""}]}, "/image/pullSecrets/0/name"),
    ({"agent.tolerations": [{"operator": "Exist"}]}, "/agent/tolerations/0/operator"),
    ({"controller.nodeSelector": {"gpu": True}}, "/controller/nodeSelector/gpu"),
    ({"web.resources": {"limits": {"memory": "lots"}}}, "/web/resources/limits/memory"),
    ({"webhook.priorityClassName": "Very High"}, "/webhook/priorityClassName"),
    ({"networkPolicies.apiServerTo": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}, "/networkPolicies/apiServerTo/0/ipBlock"),
    ({"networkPolicies.webFrom": [{"podSelecter": {}}]}, "/networkPolicies/webFrom/0"),
    ({"agent.stateDir": "/../etc"}, "agent.stateDir is /../etc: name the directory without . and .."),
    (
        {"agent.usageDir": "/var/lib/gputile"},
        "agent.usageDir is /var/lib/gputile, and agent.stateDir is /var/lib/gputile:",
    ),
    ({"agent.stateDir": "/etc"}, "agent.stateDir is /etc, and the agent has a place of its own at /etc/gputile"),
    (
        {"agent.kubeletDir": "/var/lib/gputile", "agent.stateDir": "/var/lib/gputile"},
        "of its own at /var/lib/gputile/pod-resources",
    ),
]


@pytest.mark.parametrize(("values", "named"), PODS)
def test_what_makes_no_pod_is_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(HelmFailed) as refused:
        render(values)
    assert named in str(refused.value)


def test_what_makes_pods_is_taken() -> None:
    toleration = {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 9}
    assert render(
        {
            "image.repository": "localhost:5000/a-b/c_d/e__f.g",
            "image.tag": "0.2.0_rc-1.x",
            "scheduler.image.repository": "[fd00::1]:5000/k",
            "agent.tolerations": [toleration],
            "agent.resources": {"limits": {"memory": "1Gi", "cpu": 2}, "requests": {"cpu": 0.5}},
            "agent.stateDir": "/data/gputile",
            "agent.usageDir": "/data/gputile-usage",
            "agent.kubeletDir": "/data/kubelet",
            "networkPolicies.enabled": True,
            "networkPolicies.apiServerTo": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.2.0/24"]}}],
            "networkPolicies.dnsTo": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "dns"}}}],
            "networkPolicies.metricsFrom": [{"ipBlock": {"cidr": "2001:db8::/32"}}, {"podSelector": {}}],
        }
    )


@pytest.mark.parametrize(
    "release", ["12345", "1.2.3", "a.b.c", "2026-01-01", "9gputile", "a" * 39 + "-b", "gputile", "x"]
)
def test_whatever_the_release_is_called_the_api_server_takes_its_services(release: str) -> None:
    """Names of Services begin with a letter and have no dot (RFC 1035), those of releases need neither."""
    objects = render({"web.enabled": True, "web.tlsSecret": "page"}, release=release)
    services = list(of_kind(objects, "Service"))
    assert len(services) == 2
    assert [name for name in services if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)] == []
