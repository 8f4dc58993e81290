"""Admission on a real API server: the documents' manifests, every legacy and wrong form, and a webhook that is away."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e.hostilepods import FIRST_OF_EACH, MEM, VISIBLE, WHOLE, annotated, environment
from tests.localcluster.admission import (
    MANIFESTS,
    OPEN,
    Json,
    RunningWebhook,
    installed,
    kubectl_create,
    manifest_of,
    pod,
    refusal,
    verdict,
    wait_in_force,
)
from tests.localcluster.controlplane import ControlPlane

CORE, TOPOLOGY = "aliyun.com/gpu-core.percentage", "aliyun.com/gpu"
MIG = "nvidia.com/mig-1g.10gb"
LEGACY = "alpha.kubernetes.io/nvidia-gpu"
AFFINITY = "scheduler.alpha.kubernetes.io/affinity"
TOLERATION = {"key": WHOLE, "operator": "Exists", "effect": "NoSchedule"}
MODEL = json.dumps(
    {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "alpha.kubernetes.io/nvidia-gpu-name", "operator": "In", "values": ["Tesla K80"]}
                        ]
                    }
                ]
            }
        }
    }
)
TWO_GPUS = {"labels": {"aliyun.com/gpu-count": "2"}}
GANG = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "3"}


# What is created, and the rule that refuses it ("" where it is stored).
FORMS: tuple[tuple[Json, str], ...] = (
    (pod("", {MEM: 16}), ""),
    (pod("", {MEM: "2k"}), ""),
    (pod("", {MEM: 8, CORE: 20}), ""),
    (pod("", {MEM: 8}, meta=TWO_GPUS), ""),
    (pod("", {WHOLE: 1}), ""),
    (pod("", {TOPOLOGY: 4}), ""),
    (pod("", {LEGACY: 2}), ""),
    (pod("", {LEGACY: 1}, meta={"annotations": {AFFINITY: MODEL}}), ""),
    (pod("", {LEGACY: 1}, meta={"annotations": {AFFINITY: MODEL}}, affinity={"podAntiAffinity": {}}), ""),
    (pod("", {WHOLE: 1}, tolerations=[{"key": WHOLE, "operator": "Exists"}]), ""),
    (pod("", {WHOLE: 0}), ""),
    (pod("", {MIG: 1}), ""),
    (pod("", {MEM: 1}, meta=annotated(**{"gputile.io/gpu-weight": "2"})), "gpu-share"),
    (pod("", {MEM: 8, CORE: 0}), "gpu-amount"),
    (pod("", {MEM: 8, CORE: 105}), "gpu-amount"),
    (pod("", {"cpu": "1"}), ""),
    (pod("", {MEM: 8}, container=environment("NVIDIA_DRIVER_CAPABILITIES", "all")), ""),
    (pod("", {MEM: "0.5"}), "gpu-amount"),
    (pod("", {WHOLE: "1500m"}), "gpu-amount"),
    (pod("", container={"resources": {"requests": {MEM: 1}}}), "gpu-amount"),
    (pod("", container={"resources": {"requests": {MEM: 1}, "limits": {MEM: 2}}}), "gpu-amount"),
    (pod("", {MEM: 8, CORE: 7}), "gpu-amount"),
    (pod("", {CORE: 10}), "gpu-amount"),
    (pod("", {MEM: 7}, meta=TWO_GPUS), "gpu-amount"),
    (pod("", {MEM: 8, WHOLE: 1}), "gpu-amount"),
    (pod("", {WHOLE: 1, LEGACY: 1}), "gpu-amount"),
    (pod("", {LEGACY: 1}, meta={"annotations": {AFFINITY: "{"}}), "legacy-affinity"),
    (pod("", {"cpu": "1"}, meta={"annotations": {AFFINITY: MODEL}}), ""),
    (pod("", meta={"annotations": {AFFINITY: "{"}}), "legacy-affinity"),
    *FIRST_OF_EACH,
)
PODS = 300


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane) -> Iterator[RunningWebhook]:
    with installed(control_plane) as running:
        running.configure(gpuMemoryUnit="128MiB", admission={"gangs": True})
        control_plane.wait(lambda: running.metric("gputile_webhook_memory_unit_mib") == 128, "the unit of 128 MiB")
        yield running


def named(body: Json, name: str) -> Json:
    copy: Json = json.loads(json.dumps(body))
    copy["metadata"]["name"] = name
    return copy


def stored(plane: ControlPlane, namespace: str) -> dict[str, Json]:
    pods = plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return {each["metadata"]["name"]: each for each in pods}


def amounts(body: Json) -> list[Json]:
    return [container["resources"]["limits"] for container in body["spec"]["containers"]]


@pytest.mark.requirement("G2", "G7", "L3", "L4", "M8", "M10", "B2", "U3")
def test_300_pods_of_every_form_through_kubectl(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str
) -> None:
    """Each is stored as it should be, or refused by the rule that it breaks."""
    cases = [
        (named(body, f"p{i:03}"), rule) for i, (body, rule) in zip(range(PODS), itertools.cycle(FORMS), strict=False)
    ]
    created, errors = kubectl_create(control_plane, namespace, [body for body, _ in cases])
    assert created == {body["metadata"]["name"] for body, rule in cases if not rule}
    expected = Counter(rule for _, rule in cases if rule)
    assert {rule: errors.count(f"[{rule}]") for rule in expected} == dict(expected)
    assert "Warning: spec.containers[*].resources: alpha.kubernetes.io/nvidia-gpu is the old name" in errors
    assert "is read as spec.affinity" in errors
    assert "is ignored, since spec.affinity is set and takes precedence" in errors
    found = stored(control_plane, namespace)
    assert len(found) == len(created)
    for body, rule in cases:
        if not rule:
            _check_stored(body, found[body["metadata"]["name"]])


def _check_stored(body: Json, result: Json) -> None:
    asked = {name for limits in amounts(body) for name, amount in limits.items() if amount} - {"cpu"}
    tolerates = any(t.get("key") == WHOLE for t in result["spec"]["tolerations"])
    assert tolerates == bool(asked)
    annotations = result["metadata"].get("annotations", {})
    assert annotations.get("gputile.io/memory-unit-mib") == ("128" if MEM in asked else None)
    assert AFFINITY not in annotations
    assert LEGACY not in {name for limits in amounts(result) for name in limits}
    if LEGACY in asked:
        assert amounts(result) == [{WHOLE: str(body["spec"]["containers"][0]["resources"]["limits"][LEGACY])}]
    if AFFINITY in body["metadata"].get("annotations", {}):
        own = body["spec"].get("affinity")
        assert result["spec"]["affinity"] == (own or json.loads(MODEL.replace("Tesla K80", "Tesla-K80")))


@pytest.mark.requirement("G2", "M8", "M10", "G4")
def test_a_pod_that_is_sent_once_breaks_no_rule_of_amounts(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str
) -> None:
    """Whatever other webhooks have made of a pod after gputile has changed it: at the end nothing changes it."""
    api, sent = control_plane.api, 'gputile_webhook_reviews_total{outcome="allowed",webhook="validate"}'
    api.post(f"/api/v1/namespaces/{namespace}/pods", pod("first", {MEM: 1}))  # so that the series are there
    verdict(api, namespace, pod("x", {MEM: 8, CORE: 20}))
    before = webhook.metric(sent)
    for body in (pod("x", {MEM: 16}), pod("x", {WHOLE: 8}), pod("x", {TOPOLOGY: 4})):
        assert verdict(api, namespace, body) == ""
    assert webhook.metric(sent) == before, "these were sent once"
    for body in (pod("x", {MEM: 8, CORE: 20}), pod("x", {MEM: 8}, meta=TWO_GPUS)):
        assert verdict(api, namespace, body) == ""
    assert webhook.metric(sent) == before + 2, "these a second time"
    control_plane.kubectl("delete", "mutatingwebhookconfiguration", "gputile")
    control_plane.wait(
        lambda: verdict(api, namespace, pod("x", {LEGACY: 0, WHOLE: 1})) == "", "no webhook that changes"
    )
    try:
        for body, rule in FORMS:
            if rule in ("gpu-amount", "gpu-share"):
                assert verdict(api, namespace, named(body, "x")), rule
    finally:
        control_plane.kubectl("apply", "-f", "-", input=manifest_of(webhook.port))
        wait_in_force(control_plane)


@pytest.mark.requirement("B2")
def test_the_namespace_s_owner_decides_about_access(control_plane: ControlPlane, webhook: RunningWebhook) -> None:
    """Refused by default, let through where the label says so; amounts and allocations are no matter of policy."""
    bodies = [
        named(body, "x") for body, rule in FORMS if rule in ("environment", "privileged", "host-namespace", "host-path")
    ]
    closed, opened = control_plane.create_namespace("closed"), control_plane.create_namespace("opened")
    control_plane.api.patch("/api/v1/namespaces/opened", {"metadata": {"labels": OPEN}})
    control_plane.wait(lambda: not verdict(control_plane.api, opened, bodies[0]), "the label to be seen")
    for body in bodies:
        assert "gputile.io/unsafe-gpu-access=allowed" in verdict(control_plane.api, closed, body)
        assert verdict(control_plane.api, opened, body) == ""
    for body, rule in FORMS:
        if rule in ("gpu-amount", "forged-allocation"):
            assert f"[{rule}]" in verdict(control_plane.api, opened, named(body, "x"))
    for namespace in (closed, opened):
        pods, refused = f"/api/v1/namespaces/{namespace}/pods", namespace == closed
        control_plane.api.post(pods, pod("running", {MEM: 1}))
        control_plane.api.post(pods, pod("member", {MEM: 1}, meta={"labels": GANG}))
        device = {"cdi.k8s.io/gpu": "nvidia.com/gpu=all", "gputile.io/gpu-weight": "1"}
        freed = {"metadata": {"annotations": device}, "spec": {"schedulingGates": None}}
        for name, body in (("running", {"metadata": {"annotations": device}}), ("member", freed)):
            said = refusal(control_plane.api, "PATCH", f"{pods}/{name}", body, "application/merge-patch+json")
            assert ("[device-annotation]" in said) == refused, said
            if not refused:
                assert ("[gang-gate]" in said) == (name == "member"), said
    for namespace in (closed, opened):
        control_plane.api.delete(f"/api/v1/namespaces/{namespace}")


def test_a_webhook_that_is_down_stops_gpu_pods_and_nothing_else(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str
) -> None:
    """Fail-closed for GPU pods only, and the policies hold meanwhile."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    control_plane.api.post(path, pod("early", {MEM: 1}))
    control_plane.processes["webhook"].kill()
    assert refusal(control_plane.api, "POST", path, pod("plain")) == ""
    assert refusal(control_plane.api, "POST", path, pod("zero", {"cpu": 1})) == ""
    old = pod("old", meta={"annotations": {AFFINITY: MODEL}})
    assert refusal(control_plane.api, "POST", path, old) == ""
    assert 'failed calling webhook \\"gpu-pods.gputile.io\\"' in verdict(
        control_plane.api, namespace, pod("g", {MEM: 1})
    )
    escape = pod("e", container=environment(VISIBLE))
    assert "[environment]" in verdict(control_plane.api, namespace, escape)
    forged = {"metadata": {"annotations": {"gputile.io/allocation": "{}"}}}
    said = refusal(control_plane.api, "PATCH", f"{path}/early", forged, "application/merge-patch+json")
    assert "[forged-allocation]" in said
    # the life of a GPU pod that is there goes on
    touched = {"metadata": {"labels": {"a": "b"}}}
    assert refusal(control_plane.api, "PATCH", f"{path}/early", touched, "application/merge-patch+json") == ""
    control_plane.nodes.delete_pod_now(namespace, "early")
    webhook.start()
    control_plane.wait(lambda: not verdict(control_plane.api, namespace, pod("g", {MEM: 1})), "the webhook to be back")


@pytest.mark.requirement("B2")
def test_each_line_holds_without_the_other(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str
) -> None:
    """Forged allocations are stopped by the webhook alone.

    The policies alone stop everything but amounts and weights: which weight a namespace may have is configuration, and
    the node gives no pod more.
    """
    api, path = control_plane.api, f"/api/v1/namespaces/{namespace}/pods"
    forms = [
        (named(body, "x"), rule)
        for body, rule in FORMS
        if rule not in ("", "gpu-amount", "legacy-affinity", "memory-unit")
    ]
    api.post(path, pod("there", {MEM: 1}))
    forged = {"metadata": {"annotations": {"gputile.io/allocation": "{}"}}}
    device = {"metadata": {"annotations": {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}}}
    bindings = ("gputile-allocations", "gputile-access", "gputile-devices")
    control_plane.kubectl("delete", "validatingadmissionpolicybinding", *bindings)
    escape = pod("e", container=environment("GPUTILE_X"))
    control_plane.wait(lambda: not verdict(api, namespace, escape), "no policy")
    said = refusal(api, "PATCH", f"{path}/there", forged, "application/merge-patch+json")
    assert 'admission webhook \\"allocations.gputile.io\\" denied' in said
    assert "[forged-allocation]" in said
    for there, number in itertools.product(("there", "there/status"), ("2", "")):
        counted = {"metadata": {"labels": {"aliyun.com/gpu-count": number}}}
        said = refusal(api, "PATCH", f"{path}/{there}", counted, "application/merge-patch+json")
        assert "[gpu-count-changed]" in said
    for there in ("there", "there/status"):
        said = refusal(api, "PATCH", f"{path}/{there}", device, "application/merge-patch+json")
        assert 'admission webhook \\"devices.gputile.io\\" denied' in said
        assert "[device-annotation]" in said
    for body, rule in forms:
        if MEM in json.dumps(body) or rule == "forged-allocation":
            assert f"[{rule}]" in verdict(api, namespace, body)
    control_plane.kubectl("apply", "-f", str(MANIFESTS / "policies.yaml"))
    control_plane.kubectl("delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "gputile")
    control_plane.wait(lambda: not verdict(api, namespace, pod("m", {MEM: "1", CORE: "7"})), "no webhook")
    control_plane.wait(
        lambda: bool(verdict(api, namespace, pod("e", container=environment("GPUTILE_X")))), "the policies"
    )

    def by_policy(change: Json) -> bool:
        said = refusal(api, "PATCH", f"{path}/there?dryRun=All", change, "application/merge-patch+json")
        return "ValidatingAdmissionPolicy" in said

    # each policy comes into force by itself
    control_plane.wait(lambda: by_policy(forged) and by_policy(device), "the policies of changes")
    for body, rule in forms:
        if rule != "gpu-share":
            assert f"[{rule}]" in verdict(api, namespace, body)
    text = manifest_of(webhook.port)
    control_plane.kubectl("apply", "-f", "-", input=text)
    control_plane.processes["webhook"].kill()
    webhook.start()
    wait_in_force(control_plane)
