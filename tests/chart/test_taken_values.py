"""The chart takes exactly the values whose configuration gputile's own reader takes, and refuses others by name."""

import itertools
import json
import re
from typing import Any

import pytest
import yaml
from docs.generator.schemas import schema_of
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import ConfigurationError, load_configuration
from gputile.api.well_known import GPU_RESOURCES
from tests.chart.helmcli import CHART, HelmFailed, of_kind, render
from tests.conftest import examples

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
        ({"gpuMemoryUnit": "99999999999999999999GiB"}, "gpuMemoryUnit"),
        ({"gpuMemoryUnit": "17592186044417TiB"}, "gpuMemoryUnit"),
        ({"gpuMemoryUnit": "63MiB"}, "the smallest valid unit is 64MiB"),
        ({"gpuTime": {"policy": "fair", "quantumMs": 30, "longestWaitMs": 1000}}, "/gpuTime/policy"),
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
            "autoscaling.nodeTypes[1].label: pool=gpu is that of another node type: give each its own",
        ),
        (node_types({"gpus": {"memory": "32MiB"}}), "gpus.memory is 32MiB: a GPU holds not one unit of 1GiB"),
        (node_types({"gpus": {"memory": "17TiB"}}), "gpus.memory is 17TiB: a GPU has 16777216 MiB at most"),
        (node_types({"label": "a b=b"}), "/autoscaling/nodeTypes/0/label"),
        (node_types({"taints": ["x"]}), "/autoscaling/nodeTypes/0/taints/0"),
        (node_types({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}), "/taints/0/effect"),
        (node_types({"resources": {"cpu": "lots"}}), "/autoscaling/nodeTypes/0/resources/cpu"),
        (node_types({"resources": {"cpu": "-1"}}), "/autoscaling/nodeTypes/0/resources/cpu"),
        *(
            (node_types({"resources": {each: 3}}), f"[0].resources has {each}: what the GPUs offer")
            for each in GPU_RESOURCES
        ),
        (node_types({"labels": {"x y": "z"}}), 'autoscaling.nodeTypes[0].labels: "x y" is no key of a label'),
        (node_types({"labels": {"x": "z z"}}), "/autoscaling/nodeTypes/0/labels/x"),
        (node_types({"labels": {"pool": "other"}}), "[0].labels.pool is other, and label says gpu"),
        (node_types({"labels": {"ack.node.gpu.schedule": "share"}}), "schedule is share, and mode says cgpu"),
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


sizes = st.sampled_from(
    ["64MiB", "1GiB", "2 Gi", "15GiB", "16TiB", "17TiB", "63Mi", "0GiB", "007TiB", "1GB", "1.5GiB", ""]
)
names = st.sampled_from(
    ["pool", "a.b/pool", "A_b", "-a", "a-", "a/b/c", "x y", "", "ack.node.gpu.schedule", "k" * 63, "k" * 64]
)
words = st.sampled_from(["gpu", "cgpu", "default", "", "A.b", "-", "x y", "v" * 63, "v" * 64, "1e3"])
amounts = st.sampled_from(
    ["4", "4Gi", "0.5", ".5", "1e3", "1E", "1e100000", "-1", "+1", "", "4GiB", "m", 4, 0, -1, 2**53, "9" * 257]
)
types = st.fixed_dictionaries(
    {"label": st.builds("{}={}".format, names, words), "gpus": st.fixed_dictionaries({"memory": sizes})},
    optional={
        "mode": st.sampled_from(["default", "cgpu", "share", "none"]),
        "labels": st.dictionaries(names, words, max_size=2),
        "taints": st.lists(
            st.fixed_dictionaries(
                {"key": names}, optional={"value": words, "effect": st.sampled_from(["NoSchedule", "No"])}
            ),
            max_size=1,
        ),
        "resources": st.dictionaries(
            st.sampled_from(["cpu", "", "nvidia.com/gpu", "example.com/x"]), amounts, max_size=2
        ),
    },
)


@settings(
    deadline=None,
    max_examples=examples(20),
    suppress_health_check=list(HealthCheck),
    phases=set(Phase) - {Phase.explain},
)
@given(unit=sizes, described=st.lists(types, min_size=1, max_size=2))
@example(unit="1GiB", described=[{"label": "a=b", "gpus": {"memory": "1GiB"}, "resources": {"": "m"}}])
def test_helm_takes_what_the_reader_takes_and_nothing_else(unit: str, described: list[dict[str, Any]]) -> None:
    scaling = {"enabled": True, "mostNodes": 3, "waitSeconds": 60, "nodeTypes": described}
    helm, reader = verdicts({"gpuMemoryUnit": unit, "autoscaling": scaling})
    assert bool(helm) == bool(reader), f"helm: {helm or 'takes it'}; reader: {reader or 'takes it'}"


PODS = [
    ({"image.tag": "bad tag"}, "/image/tag"),
    ({"image.repository": "x/y:1.0"}, "/image/repository"),
    ({"image.repository": "X/Y"}, "/image/repository"),
    ({"scheduler.image.tag": "bad tag"}, "/scheduler/image/tag"),
    ({"scheduler.image.repository": "x/y:1.0"}, "/scheduler/image/repository"),
    ({"image.pullSecrets": [{"nam": "x"}]}, "/image/pullSecrets/0"),
    ({"scheduler.image.repository": ""}, "scheduler.image.repository is empty"),
    ({"image.pullSecrets": [{"name": ""}]}, "/image/pullSecrets/0/name"),
    ({"agent.stateDir": "//"}, "neither may be within the other"),
    ({"image.pullSecrets": ["x"]}, "/image/pullSecrets/0"),
    ({"webhook.tolerations": ["x"]}, "/webhook/tolerations/0"),
    ({"agent.tolerations": [{"operator": "Exist"}]}, "/agent/tolerations/0/operator"),
    ({"agent.tolerations": [{"operator": "Exists", "effects": "NoSchedule"}]}, "/agent/tolerations/0"),
    ({"controller.nodeSelector": {"gpu": True}}, "/controller/nodeSelector/gpu"),
    ({"scheduler.resources": {"limit": {"memory": "1Gi"}}}, "/scheduler/resources"),
    ({"web.resources": {"limits": {"memory": "lots"}}}, "/web/resources/limits/memory"),
    ({"webhook.priorityClassName": "Very High"}, "/webhook/priorityClassName"),
    ({"agent.runtimeClassName": "n v"}, "/agent/runtimeClassName"),
    ({"networkPolicies.dnsTo": [{"ipBlock": {"cidr": "x"}}]}, "/networkPolicies/dnsTo/0/ipBlock/cidr"),
    ({"networkPolicies.apiServerTo": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}, "/networkPolicies/apiServerTo/0/ipBlock"),
    ({"networkPolicies.webFrom": [{"podSelecter": {}}]}, "/networkPolicies/webFrom/0"),
    (
        {"networkPolicies.metricsFrom": [{"ipBlock": {"cidr": "::/0"}, "podSelector": {}}]},
        "/networkPolicies/metricsFrom/0",
    ),
    ({"agent.stateDir": "/a:b"}, "/agent/stateDir"),
    ({"agent.stateDir": "/../etc"}, "agent.stateDir is /../etc: name the directory without . and .."),
    (
        {"agent.usageDir": "/var/lib/gputile"},
        "agent.usageDir is /var/lib/gputile, and agent.stateDir is /var/lib/gputile:",
    ),
    ({"agent.usageDir": "/var/lib/gputile/usage/"}, "is /var/lib/gputile: neither may be within the other"),
    ({"agent.usageDir": "/tmp"}, "agent.usageDir is /tmp, and the agent has a place of its own at /tmp"),
    ({"agent.stateDir": "/etc"}, "agent.stateDir is /etc, and the agent has a place of its own at /etc/gputile"),
    ({"agent.cdiDir": "/run/gputile"}, "agent.cdiDir is /run/gputile, and agent.usageDir is /run/gputile"),
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


@pytest.mark.parametrize(
    "values",
    [
        {"image.repository": "localhost:5000/gputile", "image.tag": "0.2.0_rc-1.x"},
        {"image.repository": "registry.example.com/a-b/c_d/e__f.g", "scheduler.image.repository": "[fd00::1]:5000/k"},
        {
            "agent.tolerations": [
                {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 9}
            ]
        },
        {"agent.resources": {"limits": {"memory": "1Gi", "cpu": 2}, "requests": {"cpu": 0.5}}},
        {
            "networkPolicies.enabled": True,
            "networkPolicies.apiServerTo": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.2.0/24"]}}],
            "networkPolicies.dnsTo": [
                {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}},
            ],
            "networkPolicies.metricsFrom": [{"ipBlock": {"cidr": "2001:db8::/32"}}, {"podSelector": {}}],
        },
        {
            "agent.stateDir": "/data/gputile",
            "agent.usageDir": "/data/gputile-usage",
            "agent.kubeletDir": "/data/kubelet",
        },
    ],
)
def test_what_makes_pods_is_taken(values: dict[str, Any]) -> None:
    assert render(values)


@pytest.mark.parametrize(
    "release", ["12345", "1.2.3", "a.b.c", "2026-01-01", "9gputile", "a" * 39 + "-b", "gputile", "x"]
)
def test_whatever_the_release_is_called_the_api_server_takes_its_services(release: str) -> None:
    """Names of Services begin with a letter and have no dot (RFC 1035), those of releases need neither."""
    objects = render({"web.enabled": True, "web.tlsSecret": "page"}, release=release)
    services = list(of_kind(objects, "Service"))
    assert len(services) == 2
    assert [name for name in services if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)] == []
