"""The rules in CEL name what the rules in Python name, and the example manifests what the code reads."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts import cel_lists
from hypothesis import example, given
from hypothesis import strategies as st

from gputile.api.config.v1alpha1 import AdmissionConfiguration
from gputile.api.well_known import (
    GPU_COUNT_LABEL,
    GPU_RESOURCES,
    LEGACY_AFFINITY_ANNOTATION,
    MIG_PREFIX,
    MPS_THREADS_ANNOTATION,
    TIME_WEIGHT_ANNOTATION,
    UNSAFE_ACCESS_LABEL,
)
from gputile.controlplane.webhook.app import UNSAFE_SUFFIX
from gputile.core.admission import isolation_bypass, review
from gputile.core.admission.pod_view import ContainerView, PodSpecView, PodView, VolumeMount

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "webhook"


def load(name: str) -> list[Any]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))


def named(expression: str) -> set[str]:
    return set(re.findall(r"'([^']*)'", expression))


POLICIES = {each["metadata"]["name"]: each["spec"] for each in load("policies.yaml") if each["kind"].endswith("Policy")}
WEBHOOKS = [webhook for each in load("webhook.yaml") for webhook in each["webhooks"]]


def variable(policy: str, name: str) -> set[str]:
    return next(named(each["expression"]) for each in POLICIES[policy]["variables"] if each["name"] == name)


def conditions(spec: Any) -> dict[str, set[str]]:
    return {each["name"]: named(each["expression"]) for each in spec["matchConditions"]}


def judged_by(rules: list[Any]) -> set[tuple[str, str]]:
    """Return the resources and operations of the rules of a policy or a webhook."""
    return {(resource, what) for rule in rules for resource in rule["resources"] for what in rule["operations"]}


@pytest.mark.parametrize("webhook", [w for w in WEBHOOKS if w["name"].startswith("gpu-pods")], ids=lambda w: w["name"])
def test_pods_that_name_any_gpu_resource_are_sent_and_fail_closed(webhook: Any) -> None:
    judged = conditions(webhook)
    if "names-a-gpu-resource" in judged:
        assert judged == {"names-a-gpu-resource": {*GPU_RESOURCES, MIG_PREFIX}}
    else:
        forged = {*review.PROTECTED, review.PROTECTED_PREFIX}
        assert judged["names-a-gpu-resource-or-allocation"] == {*GPU_RESOURCES, MIG_PREFIX, *forged, "CREATE"}
    assert webhook["failurePolicy"] == "Fail"
    path = webhook["clientConfig"]["service"]["path"]
    opened = UNSAFE_ACCESS_LABEL in webhook["namespaceSelector"].get("matchLabels", {})
    assert path.endswith(UNSAFE_SUFFIX) == opened
    assert path.split("/")[1] in ("mutate", "validate")


def test_what_is_sent_once_names_nothing_that_is_protected() -> None:
    """Of gputile's annotations a pod that is not sent again has the memory unit alone."""
    (condition,) = {
        each["expression"]
        for webhook in WEBHOOKS
        for each in webhook["matchConditions"]
        if each["name"] == "amounts-may-be-wrong"
    }
    known = named(condition)
    own = next(name for name in known if name.endswith("/"))
    others = {*review.PROTECTED, TIME_WEIGHT_ANNOTATION, MPS_THREADS_ANNOTATION}
    assert {name for name in others if not name.startswith(own)} <= known
    assert known >= {review.PROTECTED_PREFIX, review.STAMPED, GPU_COUNT_LABEL}
    assert known >= set(GPU_RESOURCES)


PATHS = st.lists(
    st.sampled_from(
        sorted(
            {
                part
                for path in (*isolation_bypass.LIMIT_PATHS, *isolation_bypass.TOOLKIT_PATHS)
                for part in path.split("/")
            }
            | {"", ".", "..", "var", "tmp", "nvidia-mps", "a.b", "ld", "x", "proc", "self", "1", "root"}
        )
    ),
    max_size=5,
).map("/".join)


@given(path=st.one_of(PATHS, PATHS.map("/{}".format)), gpu=st.booleans())
@example(path="/etc", gpu=True)
@example(path="/proc/self/root/etc/gputile", gpu=True)
def test_a_mount_that_is_refused_is_judged(path: str, gpu: bool) -> None:
    """The policy looks at mounts only where this condition holds, so it holds wherever the rule does."""
    (condition,) = (
        each for each in POLICIES["gputile-access"]["matchConditions"] if each["name"] == "small-and-may-reach-gpus"
    )
    (odd,) = set(re.findall(r"(?:mountPath|terminationMessagePath)\.matches\('([^']*)'\)", condition["expression"]))
    mount = VolumeMount(name="m", mount_path=path)
    view = PodView(spec=PodSpecView(containers=(ContainerView(name="c", volume_mounts=(mount,)),)))
    if list(isolation_bypass.access_refusals(view, gpu=gpu)):
        assert re.search(odd, path)


def test_what_is_too_large_for_the_policies_is_the_webhook_s() -> None:
    """No pod falls between the two: each has the same limits."""
    access = POLICIES["gputile-access"]["matchConditions"]
    (small,) = (each["expression"] for each in access if each["name"] == "small-and-may-reach-gpus")
    found = [webhook for webhook in WEBHOOKS if webhook["name"].startswith("large-pods")]
    assert len(found) == 2
    for webhook in found:
        (large,) = (each["expression"] for each in webhook["matchConditions"])
        assert small.startswith(f"!({large}) && (")
        constraints = POLICIES["gputile-access"]["matchConstraints"]["resourceRules"]
        assert judged_by(webhook["rules"]) == judged_by(constraints)


def test_every_list_of_annotations_is_measured_first() -> None:
    """In one expression, since the API server evaluates the conditions after one that fails, too."""
    specs = (*POLICIES.values(), *WEBHOOKS)
    every = [each["expression"] for spec in specs for each in spec["matchConditions"]]
    walked = [each for each in every if re.search(r"annotations(\.map\(|\.exists\(| : \[\])", each)]
    assert walked
    for expression in walked:
        assert re.search(r"annotations\.size\(\) (<=|>) 256", expression.partition(".exists(")[0])


def test_a_variable_that_is_refused_is_judged() -> None:
    (condition,) = (
        each for each in POLICIES["gputile-access"]["matchConditions"] if each["name"] == "small-and-may-reach-gpus"
    )
    begins = tuple(re.findall(r"e\.name\.startsWith\('([^']*)'\)", condition["expression"]))
    assert all(name.startswith(begins) for name in (*isolation_bypass.ENVIRONMENT, isolation_bypass.ENVIRONMENT_PREFIX))


@pytest.mark.requirement("L4")
def test_a_pod_with_the_old_affinity_is_sent_and_waits_for_nobody() -> None:
    """Whatever it asks for; in the open namespaces too."""
    found = [webhook for webhook in WEBHOOKS if webhook["name"].startswith("old-affinity")]
    assert [webhook["clientConfig"]["service"]["path"] for webhook in found] == ["/mutate", f"/mutate{UNSAFE_SUFFIX}"]
    for webhook in found:
        assert conditions(webhook) == {"has-the-old-affinity": {LEGACY_AFFINITY_ANNOTATION}}
        assert webhook["failurePolicy"] == "Ignore"


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (0, "gpu-pods"),
        (0, "old-affinity"),
        (0, "claims"),
        (1, "gpu-pods"),
        (1, "large-pods"),
        (1, "allocations"),
        (1, "gangs"),
    ],
)
def test_every_namespace_is_in_one_of_both_policies(document: int, kind: str) -> None:
    """Nobody is sent twice, and nobody not at all."""
    found = load("webhook.yaml")[document]["webhooks"]
    selectors = [webhook["namespaceSelector"] for webhook in found if webhook["name"].startswith(kind)]
    assert selectors == [
        {"matchExpressions": [{"key": UNSAFE_ACCESS_LABEL, "operator": "NotIn", "values": ["allowed"]}]},
        {"matchLabels": {UNSAFE_ACCESS_LABEL: "allowed"}},
    ]


def test_devices_that_annotations_name_are_judged_whenever_a_pod_takes_annotations() -> None:
    """At creation by the policy of all ways to a GPU; later by one of their own, and a webhook behind it."""
    policy = POLICIES["gputile-devices"]
    (webhook,) = [webhook for webhook in WEBHOOKS if webhook["name"] == "devices.gputile.io"]
    every = judged_by(POLICIES["gputile-allocations"]["matchConstraints"]["resourceRules"])
    without = {("pods", "CREATE"), ("pods/ephemeralcontainers", "UPDATE"), ("pods/resize", "UPDATE")}
    for rules, spec in ((policy["matchConstraints"]["resourceRules"], policy), (webhook["rules"], webhook)):
        assert judged_by(rules) == every - without, "the API server takes no annotations by the others"
        judged = conditions(spec)
        assert judged.pop("by-others-than-gputile", None) in (None, set(AdmissionConfiguration().trusted_users))
        assert list(judged.values()) == [{*isolation_bypass.DEVICE_ANNOTATIONS}]
    assert conditions(POLICIES["gputile-access"])["small-and-may-reach-gpus"] >= {*isolation_bypass.DEVICE_ANNOTATIONS}
    assert variable("gputile-access", "devices") - {"metadata.annotations[", "]", ", "} == {
        *isolation_bypass.DEVICE_ANNOTATIONS
    }
    selector = next(each for each in load("policies.yaml") if each["spec"].get("policyName") == "gputile-devices")
    assert selector["spec"]["matchResources"]["namespaceSelector"] == webhook["namespaceSelector"]


def test_the_ways_to_a_gpu_are_the_same_everywhere() -> None:
    policy = "gputile-access"
    environment = {name for name in variable(policy, "environment") if name.isupper()}
    assert environment == {*isolation_bypass.ENVIRONMENT, isolation_bypass.ENVIRONMENT_PREFIX}
    assert {name for name in variable(policy, "hostPaths") if name.startswith("/d")} == {isolation_bypass.GPU_PATHS[0]}
    assert {name for name in variable(policy, "privileged") if name.isupper()} == {
        *isolation_bypass.CAPABILITIES,
        "CAP_",
    }
    mounts = {name.rstrip("/") for name in variable(policy, "mounts") if name.startswith("/") and name != "/"}
    toolkit = {*isolation_bypass.TOOLKIT_PATHS, *(f"/var{path}" for path in isolation_bypass.TOOLKIT_PATHS)}
    assert mounts == {*isolation_bypass.LIMIT_PATHS, *isolation_bypass.DAEMON_PATHS, *toolkit}
    assert variable(policy, "gpu") - {"0"} == {*GPU_RESOURCES, MIG_PREFIX}


def test_every_subresource_that_takes_annotations_is_judged() -> None:
    rules = POLICIES["gputile-allocations"]["matchConstraints"]["resourceRules"]
    assert judged_by(rules) == {
        ("pods", "CREATE"),
        ("pods", "UPDATE"),
        ("pods/status", "UPDATE"),
        ("pods/ephemeralcontainers", "UPDATE"),
        ("pods/resize", "UPDATE"),
        ("pods/binding", "CREATE"),
        ("bindings", "CREATE"),
    }


@pytest.mark.parametrize("name", cel_lists.FILES)
def test_the_lists_in_cel_are_written_from_the_constants(name: str) -> None:
    """What a manifest has is what ``make policies`` writes."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert cel_lists.written(text, cel_lists.FILES[name]) == text


@pytest.mark.parametrize("name", cel_lists.FILES)
def test_a_constant_that_grows_is_written_into_every_list(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for before, values in cel_lists.FILES[name].items():
        more = {**cel_lists.FILES[name], before: (*values, "/a/new/one")}
        grown = cel_lists.written(text, more)
        assert grown.count("'/a/new/one'") == text.count(before + "[")
        assert list(yaml.safe_load_all(grown)), "it is YAML still"
        assert cel_lists.written(grown, more) == grown
        assert re.sub(r"\s", "", cel_lists.written(grown, cel_lists.FILES[name])) == re.sub(r"\s", "", text)


def test_a_list_that_no_constant_has_is_an_error() -> None:
    text = (EXAMPLES / "policies.yaml").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="from no constant"):
        cel_lists.written(text + "\n# ['x', 'y']\n", cel_lists.POLICIES)
    with pytest.raises(ValueError, match="no list stands behind"):
        cel_lists.written(text.replace("r in [", "r IN ["), cel_lists.POLICIES)
