"""What the chart renders: every feature alone, the documents' parameters, errors that say what to do."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gputile.api.config.v1alpha1 import Configuration, load_configuration
from gputile.api.well_known import GPU_RESOURCES, LEGACY_GPU, NODE_GPU_COUNT_LABEL, GpuTimePolicy, parse_policy
from gputile.api.workloads import DaemonSet, Deployment, ServiceAccount
from gputile.tools.views.installation_problems import missing_components
from gputile.tools.views.rollout import name_of
from gputile.version import VERSION
from tests.chart.helmcli import CHART, IMAGE, NAMESPACE, HelmFailed, helm, of_kind, pod_specs, render, settings

pytestmark = pytest.mark.requirement("U2", "U9", "M13")

SCALING = {
    "autoscaling.enabled": True,
    "autoscaling.nodeTypes": [{"label": "pool=gpu", "gpus": {"count": 4, "memory": "15GiB"}, "mode": "cgpu"}],
}
FULL = {
    "networkPolicies.enabled": True,
    "web.enabled": True,
    "web.tlsSecret": "page",
    "agent.mps": True,
    "agent.cdiDir": "/var/run/cdi",
    "agent.runtimeClassName": "nvidia",
    "image.pullSecrets": [{"name": "registry"}],
    "gpuMemoryUnit": "128MiB",
    "trust": {"by": "namespace", "groups": {"vision": ["dev", "prod"]}},
}


PAGE = {"web.enabled": True, "web.tlsSecret": "page", "networkPolicies.enabled": True}


def configuration(objects: list[dict[str, Any]]) -> Configuration:
    text = of_kind(objects, "ConfigMap")["gputile"]["data"]["configuration.yaml"]
    return load_configuration(yaml.safe_load(text))


@pytest.mark.requirement("G4")
def test_a_policy_of_gpu_time_is_set_by_name_or_number() -> None:
    """helm makes a number of 2, and text of it with ``--set-string``; values.yaml promises both."""
    for argument in ("--set=gpuTime.policy=2", "--set-string=gpuTime.policy=2", "--set=gpuTime.policy=weighted"):
        assert parse_policy(configuration(render({}, argument)).gpu_time.policy) is GpuTimePolicy.WEIGHTED


@pytest.mark.requirement("B2", "G2")
@pytest.mark.parametrize("policies", [True, False])
def test_the_webhook_judges_once_only_beside_the_policies(policies: bool) -> None:
    """Without them it alone sees what other webhooks have made of a pod."""
    (webhooks,) = of_kind(render({"policies.enabled": policies}), "ValidatingWebhookConfiguration").values()
    found = {
        each["name"]: {one["name"] for one in each["matchConditions"]}
        for each in webhooks["webhooks"]
        if each["name"].startswith("gpu-pods.")
    }
    assert len(found) == 2
    assert any(each["name"].startswith("large-pods.") for each in webhooks["webhooks"]) == policies
    assert {"amounts-may-be-wrong" in names for names in found.values()} == {policies}
    assert all("names-a-gpu-resource-or-allocation" in names for names in found.values())


@pytest.mark.requirement("B2")
@pytest.mark.parametrize("webhook", [True, False])
def test_policies_without_the_webhook_judge_pods_of_any_size(webhook: bool) -> None:
    """Beside it they leave large pods to it; without it a pod would get past them by its size."""
    objects = render({"webhook.enabled": webhook, "features.batch": webhook})
    policies = of_kind(objects, "ValidatingAdmissionPolicy").values()
    every = [each["expression"] for policy in policies for each in policy["spec"]["matchConditions"]]
    limits = {int(found) for each in every for found in re.findall(r" (?:<=|>) ([0-9]+)", each)}
    assert limits == ({64, 256, 1024, 4096} if webhook else {16777216})


@pytest.mark.requirement("U11")
@pytest.mark.parametrize(
    "values",
    [{}, FULL, {"scheduler.mode": "own"}, {"agent.enabled": False, "scheduler.enabled": False}],
    ids=["defaults", "full", "own", "parts"],
)
def test_status_finds_no_component_missing_in_what_the_chart_renders(values: dict[str, Any]) -> None:
    objects = render(values)
    kinds = [msgspec.convert(list(of_kind(objects, k.__name__).values()), list[k]) for k in (Deployment, DaemonSet)]  # type: ignore[valid-type]
    workloads = [each for found in kinds for each in found]
    accounts = msgspec.convert(list(of_kind(objects, "ServiceAccount").values()), list[ServiceAccount])
    name = configuration(objects).scheduler_name
    assert missing_components(workloads, accounts, name) == []
    for each in workloads[1:]:
        rest = [other for other in workloads if other is not each]
        assert [problem.object for problem in missing_components(rest, accounts, name)] == [name_of(each)]


def scheduler_configuration(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(of_kind(objects, "ConfigMap")["gputile-scheduler"]["data"]["scheduler.yaml"])
    return found


def test_helm_lint_finds_nothing() -> None:
    """Nor symbolic links, of which helm warns each time."""
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, *settings(FULL))
    assert not [path for path in CHART.rglob("*") if path.is_symlink()]


@pytest.mark.requirement("M13")
@pytest.mark.parametrize("off", [(), ("scheduler",), ("controller",), ("webhook",), ("agent",), ("webhook", "agent")])
def test_components_are_enabled_separately(off: tuple[str, ...]) -> None:
    """Any set of components renders, and nothing of the others is there."""
    names = ("scheduler", "controller", "webhook", "agent")
    on = {name: name not in off for name in names}
    values = {f"{name}.enabled": each for name, each in on.items()} | {"networkPolicies.enabled": True}
    objects = render(values | {"features.batch": on["webhook"] and on["controller"]})
    assert {name.removeprefix("gputile-") for name in pod_specs(objects)} == {name for name in names if on[name]}
    for each in objects:
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        assert on.get(component, True), f"{each['kind']} {each['metadata']['name']} is of a disabled component"


@pytest.mark.requirement("U2")
def test_the_configuration_has_every_field_and_the_values_under_the_documents_names() -> None:
    """gpuMemoryUnit: 128MiB at installation is what every component reads."""
    objects = render(FULL | {"placement": "spread", "maxPodsPerGpu": 8, "features.topology": False})
    found = configuration(objects)
    assert found.unit_mib == 128
    assert (found.placement, found.max_pods_per_gpu) == ("spread", 8)
    assert found.trust.groups == {"vision": ["dev", "prod"]}
    assert (found.features.sharing, found.features.topology, found.admission.gangs) == (True, False, True)
    assert found.scheduler_name == "gputile-scheduler"
    written = yaml.safe_load(of_kind(objects, "ConfigMap")["gputile"]["data"]["configuration.yaml"])
    assert written.keys() == {field.encode_name for field in msgspec.structs.fields(Configuration)}


@pytest.mark.requirement("B2")
def test_the_trusted_users_are_the_service_accounts_that_the_chart_makes() -> None:
    """Nobody else may write an allocation."""
    for release in ("gputile", "other"):
        objects = render(release=release)
        accounts = {spec["serviceAccountName"] for spec in pod_specs(objects).values()}
        assert accounts == of_kind(objects, "ServiceAccount").keys()
        name = "gputile" if release == "gputile" else "other-gputile"
        text = of_kind(objects, "ConfigMap")[name]["data"]["configuration.yaml"]
        for user in load_configuration(yaml.safe_load(text)).admission.trusted_users:
            assert user.removeprefix("system:serviceaccount:gputile:") in accounts


@pytest.mark.requirement("M13")
def test_the_scheduler_asks_about_every_gpu_resource_whatever_is_enabled() -> None:
    """What is not enabled no node offers; a pod that asks for it must not pass by the ledger all the same."""
    for values in ({}, {"features": {"sharing": False, "topology": False, "batch": False}}):
        (extender,) = scheduler_configuration(render(values))["extenders"]
        assert {each["name"] for each in extender["managedResources"]} == set(GPU_RESOURCES) - {LEGACY_GPU}
        assert extender["urlPrefix"] == "http://127.0.0.1:8888"


@pytest.mark.requirement("B3")
def test_pods_without_gpus_are_ranked_where_that_is_asked_for() -> None:
    gpu_pods, others = scheduler_configuration(render({"scheduler.extender.ranksPodsWithoutGpus": True}))["extenders"]
    assert gpu_pods["managedResources"]
    assert others["urlPrefix"] == gpu_pods["urlPrefix"]
    assert others["weight"] == gpu_pods["weight"]
    assert others["nodeCacheCapable"] is True
    assert others["prioritizeVerb"] == "prioritize-without-gpus"
    assert not {"managedResources", "filterVerb", "bindVerb", "preemptVerb"} & set(others)


@pytest.mark.parametrize(
    ("cluster", "image"),
    [("v1.36.2", "v1.36.2"), ("1.30", "v1.30.0"), ("v1.33.5-gke.1200", "v1.33.5"), ("v1.34.1+k3s1", "v1.34.1")],
)
def test_kube_scheduler_is_of_the_clusters_version_however_that_is_written(cluster: str, image: str) -> None:
    containers = pod_specs(render({}, f"--kube-version={cluster}"))["gputile-scheduler"]["containers"]
    assert f"registry.k8s.io/kube-scheduler:{image}" in [each["image"] for each in containers]


def test_components_run_on_gpu_nodes_where_there_are_no_others_and_on_others_rather() -> None:
    """Before the controller had tainted all nodes they found a place; an upgrade must find one too."""
    specs = pod_specs(render({}))
    for name in ("gputile-controller", "gputile-webhook", "gputile-scheduler"):
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in specs[name]["tolerations"]
        (preferred,) = specs[name]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert preferred["preference"] == {
            "matchExpressions": [{"key": NODE_GPU_COUNT_LABEL, "operator": "DoesNotExist"}]
        }


@pytest.mark.parametrize("mode", ["second", "own"])
def test_each_components_pods_take_what_an_operator_adds(mode: str) -> None:
    """Own labels and annotations never replace those by which the chart finds its pods and restarts them."""
    own = {
        "podLabels": {"team": "a", "app.kubernetes.io/component": "x"},
        "podAnnotations": {"checksum/scheduler": "x"},
    }
    affinity: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    variable = {"name": "OWN", "value": "1"}
    values = PAGE | {"scheduler.mode": mode, "scheduler.extender.extraEnv": [variable]}
    for component in ("scheduler", "controller", "webhook", "agent", "web"):
        values |= {f"{component}.{name}": value for name, value in own.items()} | {f"{component}.affinity": affinity}
        values |= {f"{component}.extraEnv": [variable]} if component != "scheduler" else {}
    objects = render(values)
    for each in (*of_kind(objects, "Deployment").values(), *of_kind(objects, "DaemonSet").values()):
        template = each["spec"]["template"]
        assert each["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert template["metadata"]["labels"]["team"] == "a"
        mark = template["metadata"]["annotations"]["checksum/scheduler"]
        assert (mark != "x") == (each["metadata"]["name"] == "gputile-scheduler" and mode == "second")
        assert template["spec"]["affinity"] == affinity
        assert variable in template["spec"]["containers"][-1]["env"]


def test_the_clusters_own_scheduler_reaches_the_extender_on_loopback() -> None:
    objects = render({"scheduler.mode": "own", "scheduler.nodeSelector": {"zone": "a"}})
    spec = pod_specs(objects)["gputile-scheduler"]
    assert spec["hostNetwork"] is True
    assert spec["nodeSelector"] == {"node-role.kubernetes.io/control-plane": "", "zone": "a"}
    assert [container["name"] for container in spec["containers"]] == ["extender"]
    assert "--host=127.0.0.1" in spec["containers"][0]["args"]
    assert "profiles" not in scheduler_configuration(objects)
    assert configuration(objects).scheduler_name == ""


@pytest.mark.requirement("U2")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpuMemoryUnit": "17TiB"}, "gpuMemoryUnit is 17TiB: the largest valid unit is 16777216MiB"),
        ({"gpuMemoryUnits": "1GiB"}, "gpuMemoryUnits"),
        ({"placement": "binpak"}, "placement': value must be one of 'binpack', 'spread', 'packing'"),
        ({"features.batch": True, "webhook.enabled": False}, "features.batch needs webhook.enabled"),
        (
            {**SCALING, "features.batch": False, "controller.enabled": False},
            "autoscaling.enabled needs webhook.enabled and controller",
        ),
        ({"autoscaling.enabled": True}, "autoscaling.nodeTypes is empty"),
        ({"image.repository": ""}, "build the Dockerfile"),
        ({"scheduler.mode": "third"}, "value must be one of 'second', 'own'"),
        (
            {"web.enabled": True, "web.tlsSecret": "page", "web.port": 8086},
            "web.healthPort and web.port are both 8086: use a different port for each",
        ),
        (
            {"scheduler.extender.healthPort": 10259, "scheduler.mode": "own"},
            "kube-scheduler's own port and scheduler.extender.healthPort are both 10259",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    """Others are refused with the smallest valid unit named."""
    with pytest.raises(HelmFailed) as refused:
        render(values)
    assert message in str(refused.value)


SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
PLAIN = "stand-in"


def strings(schema: dict[str, Any], path: str = "") -> dict[str, str]:
    """Return the values that are free text, by their dotted names, with the pattern that each has to match."""
    found: dict[str, str] = {}
    for name, each in schema["properties"].items():
        each = SCHEMA["definitions"][each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        if "properties" in each:
            found |= strings(each, f"{path}{name}.")
        elif each.get("type") == "string":
            found[f"{path}{name}"] = each.get("pattern", "")
    return found


def rendered_with(text: str, odd: str) -> str:
    """Return all objects where each string that takes ``odd`` and PLAIN, or paths of them, is ``text``, as JSON."""
    values: dict[str, Any] = {"trust.groups": {text: []}}
    for name, pattern in strings(SCHEMA).items():
        for form in ("{}", "/{}/" + name):
            if name not in values and all(re.search(pattern, form.format(each)) for each in (odd, PLAIN)):
                values[name] = form.format(text)
    objects = json.loads(json.dumps(render(values)))
    for each in objects:
        if each["kind"] == "ConfigMap":
            each["data"] = {name: yaml.safe_load(value) for name, value in each["data"].items()}
    return re.sub(r"[0-9a-f]{64}", "", json.dumps(objects, sort_keys=True))  # checksums


@pytest.mark.requirement("U10")
@pytest.mark.parametrize(
    "odd", ["123", "1e3", "0x1f", "1:30", ".inf", "2026-01-01", "yes", "null", "~", "a: b", "{}", "'"]
)
def test_a_string_stays_a_string_whatever_it_looks_like(odd: str) -> None:
    plain = rendered_with(PLAIN, odd)
    assert PLAIN in plain
    assert rendered_with(odd, odd) == plain.replace(PLAIN, odd)


@pytest.mark.parametrize(
    "odd", ["123", "1e3", "0x1f", "2026-01-01", "on", "12345678901234567890123456789012345678901234"]
)
def test_release_and_namespace_may_look_like_numbers(odd: str) -> None:
    objects = render({}, f"--namespace={odd}", release=odd)
    for each in objects:
        assert isinstance(each["metadata"]["name"], str)
        assert each["metadata"].get("namespace", odd) in (odd, "kube-system")
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == odd
    (text,) = [each["data"]["configuration.yaml"] for each in objects if "configuration.yaml" in each.get("data", {})]
    users = load_configuration(yaml.safe_load(text)).admission.trusted_users
    assert all(user.startswith(f"system:serviceaccount:{odd}:") for user in users)


def test_only_the_agent_is_more_than_restricted_and_says_why() -> None:
    """Pod Security: no component is privileged; the agent uses directories of its host, as root."""
    objects = render(FULL)
    for name, spec in pod_specs(objects).items():
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in context
        if name != "gputile-agent":
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert all("hostPath" not in volume for volume in spec["volumes"])
    lines = (CHART / "templates" / "agent.yaml").read_text().splitlines()
    (usage,) = pod_specs(objects)["gputile-agent"]["initContainers"]
    assert usage["securityContext"]["privileged"] is True
    assert [each["name"] for each in usage["volumeMounts"]] == ["usage", "state"]
    for exception in ("privileged: true", "hostIPC: true", "runAsUser: 0"):
        at = next(number for number, line in enumerate(lines) if exception in line)
        assert any(line.strip().startswith("# ") for line in lines[at - 2 : at]), f"{exception} stands without a reason"
    driver = pod_specs(render({"agent.driverDir": "/home/kubernetes/bin/nvidia"}))["gputile-agent"]["containers"][0]
    assert driver["securityContext"]["privileged"] is True
    assert {"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"} in driver["env"]


KEYS = ("/var/lib/kubelet/pki", "/etc/kubernetes", "/root/.ssh", "/etc/ssh", "/etc/shadow")  # of the host, for its root


def test_the_agent_sees_nothing_of_its_host_that_it_does_not_need() -> None:
    """Minimal rights: no directory that has the kubelet's keys in it, whatever is switched on."""
    for values in ({}, FULL, FULL | {"agent.mps": True, "agent.driverDir": "/opt/driver"}):
        volumes = pod_specs(render(values))["gputile-agent"]["volumes"]
        paths = [Path(volume["hostPath"]["path"]) for volume in volumes if "hostPath" in volume]
        assert paths
        assert [(path, key) for path in paths for key in KEYS if Path(key).is_relative_to(path)] == []
    assert "initContainers" not in pod_specs(render({"agent.usageMiB": 0}))["gputile-agent"]


def test_no_component_may_do_everything() -> None:
    """Minimal rights: no wildcard, and who reads secrets reads one by its name."""
    for each in render(FULL):
        if each["kind"] not in ("ClusterRole", "Role"):
            continue
        for rule in each["rules"]:
            assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
            if "secrets" in rule["resources"] and set(rule["verbs"]) != {"create"}:
                assert rule["resourceNames"]
                assert each["kind"] == "Role"


@pytest.mark.requirement("U8")
def test_the_controller_may_write_placeholders_only_where_it_asks_for_nodes() -> None:
    def rights(values: dict[str, Any]) -> list[Any]:
        named = {"kind": "Role", "name": "gputile-controller"}
        (role,) = (each for each in render(values) if {"kind": each["kind"], "name": each["metadata"]["name"]} == named)
        return [(rule["resources"], rule["verbs"]) for rule in role["rules"] if rule["resources"] != ["leases"]]

    assert rights({}) == []
    assert rights(SCALING) == [(["jobs"], ["create", "delete"]), (["pods/status"], ["patch"])]


def cluster_rights(component: str, values: dict[str, Any]) -> set[tuple[str, str]]:
    rules = of_kind(render(values), "ClusterRole")[f"gputile-{component}"]["rules"]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


EVICTING = {("pods/eviction", "create")}
BUDGETS = {("poddisruptionbudgets", verb) for verb in ("list", "watch")}
GROUPS = {("podgroups", verb) for verb in ("get", "list", "watch")}
MARKING = {("pods/status", "patch")}
PODS = {("pods", verb) for verb in ("get", "list", "watch")}


@pytest.mark.requirement("B5")
@pytest.mark.parametrize(
    ("component", "values", "without"),
    [
        # kube-scheduler asks the extender about the budgets of the victims that it finds itself; it evicts them.
        ("scheduler", {"preemption.enabled": False}, set()),
        ("controller", {"preemption.enabled": False}, EVICTING | BUDGETS | MARKING),
        # Single pods preempt without gangs.
        ("controller", {"features.batch": False}, GROUPS | {("pods", "patch")}),
        (
            "controller",
            {"features.batch": False, "preemption.enabled": False},
            EVICTING | BUDGETS | MARKING | GROUPS | PODS | {("pods", "patch")},
        ),
    ],
)
def test_a_component_keeps_no_right_that_its_configuration_never_uses(
    component: str, values: dict[str, Any], without: set[tuple[str, str]]
) -> None:
    assert cluster_rights(component, {}) - cluster_rights(component, values) == without
    assert cluster_rights(component, values) <= cluster_rights(component, {})


def agent_affinity(values: dict[str, Any]) -> Any:
    return pod_specs(render(values))["gputile-agent"].get("affinity")


@pytest.mark.requirement("M1", "M3")
def test_agents_go_wherever_a_kubelet_serves_linux_unless_said_otherwise() -> None:
    """No label of the node decides it, so none that is deleted ends an agent; your own list is what counts."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    (term,) = agent_affinity({})["nodeAffinity"][required]["nodeSelectorTerms"]
    assert {each["key"] for each in term["matchExpressions"]} == {
        "kubernetes.io/os",
        "type",
        "eks.amazonaws.com/compute-type",
    }
    assert agent_affinity({"agent.nodeSelectorTerms": []}) is None
    own = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpu"]}]}]
    listed = agent_affinity({"agent.nodeSelectorTerms": own})
    assert listed == {"nodeAffinity": {required: {"nodeSelectorTerms": own}}}
    preferred: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert agent_affinity({"agent.affinity": preferred}) == preferred
    assert "--no-rest" not in pod_specs(render({}))["gputile-agent"]["containers"][0]["args"]
    assert "--no-rest" in pod_specs(render({"agent.rest": False}))["gputile-agent"]["containers"][0]["args"]


def test_nothing_that_only_gpu_nodes_have_keeps_an_agent_from_starting() -> None:
    """A hostPath of type Directory that is missing would."""
    spec = pod_specs(render(FULL | {"agent.driverDir": "/opt/driver"}))["gputile-agent"]
    needed = {v["hostPath"]["path"] for v in spec["volumes"] if v.get("hostPath", {}).get("type") == "Directory"}
    assert needed == {"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"}


def test_the_image_is_named_by_digest_or_tag() -> None:
    digest = "sha256:" + "0" * 64
    for values, expected in (
        ({}, f"{IMAGE}:{VERSION}"),
        ({"image.tag": "main"}, f"{IMAGE}:main"),
        ({"image.digest": digest}, f"{IMAGE}@{digest}"),
    ):
        specs = pod_specs(render(values))
        assert {c["image"] for s in specs.values() for c in s["containers"] if c["name"] != "kube-scheduler"} == {
            expected
        }
    containers = {c["name"]: c for c in pod_specs(render())["gputile-scheduler"]["containers"]}
    assert containers["kube-scheduler"]["image"] == "registry.k8s.io/kube-scheduler:v1.36.2"


def test_a_pod_may_be_evicted_of_every_component_that_has_replicas() -> None:
    budgets = of_kind(render(), "PodDisruptionBudget")
    assert set(budgets) == {"gputile-scheduler", "gputile-controller", "gputile-webhook"}
    assert {budget["spec"]["maxUnavailable"] for budget in budgets.values()} == {1}


def test_the_chart_speaks_the_components_command_lines() -> None:
    """Every argument in the chart is an option of the command, so that a renamed one is noticed."""
    from typer.main import get_command

    from gputile.cli.app import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for spec in pod_specs(render(FULL)).values():
        for container in spec["containers"]:
            if container["name"] == "kube-scheduler":
                continue
            name, *arguments = container["args"]
            options = {option for parameter in commands[name].params for option in parameter.opts}
            assert {argument.partition("=")[0] for argument in arguments} <= options


@pytest.mark.parametrize(
    ("values", "said", "unsaid"),
    [
        ({"gpuMemoryUnit": "256MiB"}, ["aliyun.com/gpu-mem is 256MiB", "gputile status"], ["spec.schedulerName"]),
        ({"scheduler.mode": "own"}, ["urlPrefix: http://127.0.0.1:8888", "weight: 200"], ["profiles:"]),
        ({"features.sharing": False}, ["one of default, topology"], ["cgpu"]),
    ],
)
def test_the_notes_say_what_is_left_to_do(values: dict[str, Any], said: list[str], unsaid: list[str]) -> None:
    text = helm("install", "gputile", CHART, f"--namespace={NAMESPACE}", "--dry-run=client", *settings(values))
    notes = text.partition("NOTES:")[2]
    assert all(each in notes for each in said)
    assert not [each for each in unsaid if each in notes]


@pytest.mark.requirement("B7")
def test_the_page_is_there_where_it_is_asked_for_and_serves_by_https_alone() -> None:
    assert "gputile-web" not in pod_specs(render())
    with pytest.raises(HelmFailed, match=r"web\.tlsSecret is not set: viewers log in with tokens"):
        render({"web.enabled": True})
    objects = render(PAGE)
    (container,) = pod_specs(objects)["gputile-web"]["containers"]
    assert "--tls-dir=/etc/gputile-tls" in container["args"]
    volumes = {each["name"]: each for each in pod_specs(objects)["gputile-web"]["volumes"]}
    assert volumes["certificate"]["secret"] == {"secretName": "page"}
    assert of_kind(objects, "Service")["gputile-web"]["spec"]["ports"][0]["targetPort"] == "https"


def test_components_reach_what_the_values_say_and_any_host_otherwise() -> None:
    """The API server is outside of the cluster or on its nodes, so only who installs knows its addresses."""
    everywhere = of_kind(render(PAGE), "NetworkPolicy")
    assert all([rule.keys() for rule in each["spec"]["egress"]] == [{"ports"}] * 2 for each in everywhere.values())
    server: list[dict[str, Any]] = [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    dns = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
    values = PAGE | {"networkPolicies.apiServerTo": server, "networkPolicies.dnsTo": dns}
    narrowed = of_kind(render(values), "NetworkPolicy")
    assert narrowed.keys() == everywhere.keys()
    for name, each in narrowed.items():
        to_server, to_dns = each["spec"]["egress"]
        assert ([port["port"] for port in to_server["ports"]], to_server["to"]) == ([443, 6443], server), name
        assert ({port["port"] for port in to_dns["ports"]}, to_dns["to"]) == ({53}, dns), name


@pytest.mark.requirement("B7", "U5", "U9", "U10")
def test_what_reads_its_configuration_once_starts_again_with_a_new_one_and_nothing_else_does() -> None:
    """The page reads gputile's, and kube-scheduler its own."""

    def templates(values: dict[str, Any]) -> dict[str, Any]:
        objects = render(PAGE | values)
        return {
            name: each["spec"]["template"]["metadata"]
            for kind in ("Deployment", "DaemonSet")
            for name, each in of_kind(objects, kind).items()
        }

    before = templates({})
    for values, restarted in (
        ({"gpuMemoryUnit": "128MiB"}, {"gputile-web"}),
        ({"scheduler.name": "another"}, {"gputile-scheduler", "gputile-web"}),
    ):
        after = templates(values)
        assert {name for name in before if before[name] != after[name]} == restarted


@pytest.mark.requirement("B8")
def test_claims_are_served_where_they_are_enabled_and_nothing_of_them_is_there_else() -> None:
    """The example manifests, for the extender's entry, the DeviceClasses and the webhook, are one with the chart."""
    without, enabled = (
        render({}),
        render({"features.claims": True, "agent.cdiDir": "/var/run/cdi"}, "--kube-version=v1.36.0"),
    )
    assert "laims" not in json.dumps([each for each in without if each["kind"] != "ConfigMap"])
    assert not configuration(without).features.claims
    assert configuration(enabled).features.claims
    examples = CHART.parents[1] / "examples"
    _, entry = scheduler_configuration(enabled)["extenders"]
    assert (
        entry == yaml.safe_load((examples / "extender" / "scheduler.yaml").read_text(encoding="utf-8"))["extenders"][1]
    )
    for wanted in yaml.safe_load_all((examples / "extender" / "deviceclasses.yaml").read_text(encoding="utf-8")):
        assert of_kind(enabled, wanted["kind"])[wanted["metadata"]["name"]]["spec"] == wanted["spec"]
    for component, verbs in (("scheduler", ["list", "watch"]), ("agent", ["get"])):
        rules = of_kind(enabled, "ClusterRole")[f"gputile-{component}"]["rules"]
        assert [each["verbs"] for each in rules if each["resources"] == ["resourceclaims"]] == [verbs]
    webhooks = of_kind(enabled, "MutatingWebhookConfiguration")["gputile"]["webhooks"]
    assert [each["failurePolicy"] for each in webhooks if each["name"].startswith("claims.")] == ["Ignore"] * 2
    variables = of_kind(enabled, "ValidatingAdmissionPolicy")["gputile-access"]["spec"]["variables"]
    assert "has(object.spec.resourceClaims)" in next(each["expression"] for each in variables if each["name"] == "gpu")


@pytest.mark.requirement("B8")
@pytest.mark.parametrize(
    ("values", "version", "said"),
    [
        ({"features.claims": True}, "v1.36.0", "features.claims needs agent.cdiDir"),
        ({"features.claims": True, "agent.cdiDir": "/cdi"}, "v1.33.5-gke.1", "features.claims needs Kubernetes 1.34"),
    ],
)
def test_claims_are_refused_where_they_cannot_be_served(values: dict[str, Any], version: str, said: str) -> None:
    with pytest.raises(HelmFailed, match=said):
        render(values, f"--kube-version={version}")
