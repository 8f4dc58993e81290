"""Old forms, tolerations, unit, scheduler and gates: what is changed in a pod."""

import json
from dataclasses import replace

import pytest

from gputile.core.admission.review import mutate

from .builders import POLICY, Json, broken, mutated, pod, request

TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
LEGACY = "alpha.kubernetes.io/nvidia-gpu"
ANNOTATION = "scheduler.alpha.kubernetes.io/affinity"
MODELS = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {
                            "key": "alpha.kubernetes.io/nvidia-gpu-name",
                            "operator": "In",
                            "values": ["Tesla K80", "Tesla-P100"],
                        }
                    ]
                }
            ]
        }
    },
    "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "podAffinityTerm": {"x": 1}}]},
}
GATED = replace(POLICY, gangs=True)
GANG = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "3"}


def warnings(body: Json) -> tuple[str, ...]:
    return mutate(request(body), POLICY).warnings


@pytest.mark.requirement("G7")
@pytest.mark.parametrize(
    "resource", ["aliyun.com/gpu-mem", "aliyun.com/gpu", "nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu"]
)
def test_every_gpu_resource_brings_the_toleration(resource: str) -> None:
    assert mutated(pod({resource: "1"}))["spec"]["tolerations"] == [TOLERATION]


@pytest.mark.requirement("G7")
def test_the_toleration_is_added_to_others_and_not_twice() -> None:
    other = {"key": "team", "operator": "Exists"}
    assert mutated(pod({"nvidia.com/gpu": "1"}, tolerations=[other]))["spec"]["tolerations"] == [other, TOLERATION]
    for enough in (TOLERATION, {"operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists"}):
        assert mutated(pod({"nvidia.com/gpu": "1"}, tolerations=[enough]))["spec"]["tolerations"] == [enough]


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("amount", ["0", 0, "0.0"])
def test_a_pod_that_asks_for_no_gpu_is_not_let_onto_gpu_nodes(amount: object) -> None:
    """A plain pod is kept off; charts write "0" where no GPU is wanted."""
    body = pod({"nvidia.com/gpu": amount})
    assert mutated(body) == body


@pytest.mark.requirement("U3", "U5")
def test_the_unit_in_force_is_stamped_on_pods_that_count_in_it() -> None:
    assert mutated(pod({"aliyun.com/gpu-mem": "16"}))["metadata"]["annotations"] == {
        "gputile.io/memory-unit-mib": "128"
    }
    kept = mutated(pod({"aliyun.com/gpu-mem": "16"}, meta={"annotations": {"a": "b"}}))["metadata"]["annotations"]
    assert kept == {"a": "b", "gputile.io/memory-unit-mib": "128"}
    assert "annotations" not in mutated(pod({"nvidia.com/gpu": "1"}))["metadata"]


@pytest.mark.requirement("U5")
@pytest.mark.parametrize(
    ("meta", "isolation"),
    [
        ({}, "memory"),
        ({"annotations": {"gputile.io/isolation": "none"}}, "none"),
        ({"annotations": {"a": "b"}}, "memory"),
    ],
)
def test_the_clusters_isolation_is_stamped_where_the_pod_says_nothing(meta: Json, isolation: str) -> None:
    stored = mutated(pod({"aliyun.com/gpu-mem": "16"}, meta=meta), replace(POLICY, isolation="memory"))
    assert stored["metadata"]["annotations"] == meta.get("annotations", {}) | {
        "gputile.io/isolation": isolation,
        "gputile.io/memory-unit-mib": "128",
    }


def test_only_the_unit_in_force_may_be_stamped_by_hand() -> None:
    """A pod does not choose its unit; a copy of a stored pod is created like the first."""
    body = pod({"aliyun.com/gpu-mem": "16"}, meta={"annotations": {"gputile.io/memory-unit-mib": "128"}})
    assert mutated(body)["metadata"] == body["metadata"]
    assert broken(pod({"aliyun.com/gpu-mem": "1"}, meta={"annotations": {"gputile.io/memory-unit-mib": "64"}})) == [
        "memory-unit"
    ]


@pytest.mark.requirement("L3")
def test_the_old_resource_gets_its_new_name_with_a_warning() -> None:
    """Init containers too; limits and requests."""
    body = pod({LEGACY: "2"}, initContainers=[{"name": "i", "resources": {"limits": {LEGACY: 1, "cpu": "1"}}}])
    spec = mutated(body)["spec"]
    assert spec["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": "2"},
        "requests": {"nvidia.com/gpu": "2"},
    }
    assert spec["initContainers"][0]["resources"] == {"limits": {"cpu": "1", "nvidia.com/gpu": 1}}
    (warning,) = warnings(body)
    assert f"{LEGACY} is the old name of nvidia.com/gpu" in warning


@pytest.mark.requirement("L4", "C3")
def test_the_affinity_annotation_becomes_the_spec_s_with_all_its_fields() -> None:
    """Nothing that gputile does not read is lost, and models are spelled as the nodes' label is."""
    body = pod({LEGACY: "2"}, meta={"annotations": {ANNOTATION: json.dumps(MODELS), "keep": "me"}})
    stored = mutated(body)
    assert stored["metadata"]["annotations"] == {"keep": "me"}
    expected = json.loads(json.dumps(MODELS).replace("Tesla K80", "Tesla-K80"))
    assert stored["spec"]["affinity"] == expected
    assert any("is read as spec.affinity" in warning for warning in warnings(body))


@pytest.mark.requirement("L4")
def test_an_affinity_in_the_spec_goes_before_the_annotation() -> None:
    """Not overridden, and the author is told."""
    own: Json = {"podAntiAffinity": {}}
    body = pod({LEGACY: "2"}, meta={"annotations": {ANNOTATION: json.dumps(MODELS)}}, affinity=own)
    stored = mutated(body)
    assert stored["spec"]["affinity"] == own
    assert ANNOTATION not in stored["metadata"]["annotations"]
    assert any("is ignored, since spec.affinity is set and takes precedence" in warning for warning in warnings(body))


@pytest.mark.requirement("L4")
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"nodeAffinity": 5}',
        "",
        "[" * 5000,
    ],
)
def test_a_malformed_affinity_is_refused(text: str) -> None:
    assert broken(pod({LEGACY: "2"}, meta={"annotations": {ANNOTATION: text}})) == ["legacy-affinity"]


@pytest.mark.requirement("C3")
def test_models_in_selectors_are_spelled_as_the_label() -> None:
    label = "alpha.kubernetes.io/nvidia-gpu-name"
    assert mutated(pod({LEGACY: "1"}, nodeSelector={label: "Tesla K80"}))["spec"]["nodeSelector"] == {
        label: "Tesla-K80"
    }


@pytest.mark.requirement("M13")
@pytest.mark.parametrize("labels", [GANG, {"scheduling.x-k8s.io/pod-group": "g"}])
def test_a_gang_s_pod_is_gated_where_gangs_are_enabled(labels: Json) -> None:
    body = pod({"nvidia.com/gpu": "1"}, meta={"labels": labels})
    assert mutated(body, GATED)["spec"]["schedulingGates"] == [{"name": "gputile.io/gang"}]
    assert "schedulingGates" not in mutated(body)["spec"]
    other = {"name": "someone.else/gate"}
    gates = mutated(pod({"nvidia.com/gpu": "1"}, meta={"labels": labels}, schedulingGates=[other]), GATED)
    assert gates["spec"]["schedulingGates"] == [other, {"name": "gputile.io/gang"}]
    assert "schedulingGates" not in mutated(pod(meta={"labels": labels}), GATED)["spec"]


def test_half_a_gang_is_scheduled_alone_and_told_so() -> None:
    name = next(iter(GANG))
    verdict = mutate(request(pod({"nvidia.com/gpu": "1"}, meta={"labels": {name: "g"}})), GATED)
    assert not any(operation.path[-1] == "schedulingGates" for operation in verdict.operations)
    assert "min-available is missing" in verdict.warnings[0]


@pytest.mark.parametrize("size", ["0", "-1", "many", "", "1.5", "999999"])
def test_a_gang_of_no_size_is_refused(size: str) -> None:
    labels = {**GANG, "pod-group.scheduling.sigs.k8s.io/min-available": size}
    assert broken(pod({"nvidia.com/gpu": "1"}, meta={"labels": labels}), GATED) == ["gang"]


@pytest.mark.requirement("G7")
@pytest.mark.parametrize("section", ["limits", "requests"])
def test_a_pod_with_instances_of_mig_tolerates_the_taint_too(section: str) -> None:
    """The taint is on every GPU node. Nothing else is done to it: gputile does not decide its GPU."""
    body = pod(container={"resources": {section: {"nvidia.com/mig-1g.10gb": 1}}})
    gang = {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}
    policy = replace(POLICY, gangs=True, scheduler="gputile-scheduler")
    stored = mutated({**body, "metadata": {**body["metadata"], **gang}}, policy)
    assert stored["spec"].pop("tolerations") == [TOLERATION]
    assert stored["spec"] == body["spec"]
    none = pod({"nvidia.com/mig-1g.10gb": 0})
    assert mutated(none) == none


@pytest.mark.requirement("U3")
@pytest.mark.parametrize(
    ("named", "resource", "scheduler", "expected"),
    [
        ("default-scheduler", "aliyun.com/gpu-mem", "gputile-scheduler", "gputile-scheduler"),
        ("default-scheduler", "nvidia.com/gpu", "gputile-scheduler", "gputile-scheduler"),
        ("another", "nvidia.com/gpu", "gputile-scheduler", "another"),
        ("default-scheduler", "nvidia.com/gpu", "", "default-scheduler"),
        ("default-scheduler", "nvidia.com/mig-1g.10gb", "gputile-scheduler", "default-scheduler"),
        ("default-scheduler", "cpu", "gputile-scheduler", "default-scheduler"),
    ],
)
def test_gpu_pods_that_name_no_scheduler_get_gputiles(named: str, resource: str, scheduler: str, expected: str) -> None:
    stored = mutated(pod({resource: 1}, schedulerName=named), replace(POLICY, scheduler=scheduler))
    assert stored["spec"]["schedulerName"] == expected
