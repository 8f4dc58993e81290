"""Admission on a real API server: the documents' manifests, every legacy and wrong form, and a webhook that is away."""

import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputile.api.core import Pod
from gputile.core.admission.gpu_requests import asks_for_gpu, broken_amounts, broken_shares
from tests.e2e.hostilepods import FIRST_OF_EACH, MEM, VISIBLE, WHOLE, annotated, environment
from tests.localcluster.admission import (
    EXAMPLES,
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
from tests.walk.documents import document_yaml

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
    assert "is left out: spec.affinity is there and goes before it" in errors
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


CONTAINERS = st.builds(
    lambda limits, requests, always: {
        "resources": {"limits": limits, "requests": {**limits, **requests} if requests else {}},
        **({"restartPolicy": "Always"} if always else {}),
    },
    st.dictionaries(
        st.sampled_from([MEM, MEM, CORE, WHOLE, TOPOLOGY, LEGACY, MIG]),
        st.sampled_from(["0", "1", "2", "5", "9", "10", "64", "99", "100", "999", "1000", "2k"]),
        max_size=2,
    ),
    st.one_of(st.just({}), st.dictionaries(st.sampled_from([MEM, WHOLE]), st.sampled_from(["1", "9"]), max_size=1)),
    st.booleans(),
)


def optional(values: dict[str, list[str]]) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({}, optional={key: st.sampled_from(each) for key, each in values.items()})


def judged_pod(containers: list[Json], first: list[Json], meta: Json) -> Json:
    apps = [{key: value for key, value in each.items() if key != "restartPolicy"} for each in containers]
    every = [{**each, "name": f"c{i}", "image": "registry.example.com/x:1"} for i, each in enumerate([*first, *apps])]
    body = pod("judged", meta=meta, initContainers=every[: len(first)])
    return {**body, "spec": {**body["spec"], "containers": every[len(first) :]}}


JUDGED = st.builds(
    judged_pod,
    st.one_of(st.lists(CONTAINERS, min_size=1, max_size=2), st.lists(CONTAINERS, min_size=6, max_size=9)),
    st.one_of(st.just([]), st.lists(CONTAINERS, max_size=2)),
    st.builds(
        lambda labels, annotations: {"labels": labels, "annotations": annotations},
        st.one_of(st.just({}), optional({"aliyun.com/gpu-count": ["1", "2", "17", "x"]})),
        st.one_of(
            st.just({}),
            optional(
                {
                    "gputile.io/gpu-weight": ["1", "2", "x"],
                    "gputile.io/mps-active-thread-percentage": ["0", "50", "x"],
                    "gputile.io/memory-unit-mib": ["0", "63", "64", "128", "1024", "1025", "16777216", "x"],
                }
            ),
        ),
    ),
)


@pytest.mark.requirement("G2", "M8", "M10", "G4")
def test_a_pod_that_is_sent_once_breaks_no_rule_of_amounts(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str
) -> None:
    """Whatever other webhooks have made of a pod after gputile has changed it: here nothing has changed it."""
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

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(body=JUDGED)
    def judged(body: Json) -> None:
        plain = msgspec.convert(body, Pod)
        spec = body["spec"]
        named = [each["resources"] for each in (*spec["containers"], *spec["initContainers"])]
        if not any(amounts for resources in named for amounts in resources.values()):
            assert verdict(api, namespace, body) == "", "it names no GPU resource, and is sent to nobody"
            return
        shares = broken_shares(plain.metadata.annotations, 1) if asks_for_gpu(plain) else []
        wrong = broken_amounts(plain, 128) or shares
        assert bool(verdict(api, namespace, body)) == bool(wrong), wrong

    control_plane.kubectl("delete", "mutatingwebhookconfiguration", "gputile")
    control_plane.wait(
        lambda: verdict(api, namespace, pod("x", {LEGACY: 0, WHOLE: 1})) == "", "no webhook that changes"
    )
    try:
        judged()
    finally:
        control_plane.kubectl("apply", "-f", "-", input=manifest_of(webhook.port))
        wait_in_force(control_plane)


@pytest.mark.requirement("G4")
def test_nobody_takes_more_time_by_a_change_afterwards(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str
) -> None:
    """The most that a namespace may weigh holds for changes too, by whatever subresource."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    control_plane.api.post(pods, pod("light", {MEM: 1}))
    for path, weight, refused in (("light", "2", True), ("light/status", "2", True), ("light", "1", False)):
        body = {"metadata": annotated(**{"gputile.io/gpu-weight": weight})}
        said = refusal(control_plane.api, "PATCH", f"{pods}/{path}", body, "application/merge-patch+json")
        assert ("[gpu-share]" in said) == refused, said
    for path, percent, refused in (("light", "0", True), ("light/status", "101", True), ("light", "50", False)):
        body = {"metadata": annotated(**{"gputile.io/mps-active-thread-percentage": percent})}
        said = refusal(control_plane.api, "PATCH", f"{pods}/{path}", body, "application/merge-patch+json")
        assert ("[gpu-share]" in said) == refused, said


@pytest.mark.requirement("U3", "C2", "L3", "L5")
def test_the_documents_manifests_are_taken_unmodified(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str
) -> None:
    """The StatefulSet, both Jobs and the pods of early Kubernetes."""
    for text in (*document_yaml("001"), *(text for text in document_yaml("003") if "kind: Job" in text)):
        control_plane.kubectl("-n", namespace, "create", "--dry-run=server", "-f", "-", input=text)
    control_plane.kubectl("-n", namespace, "apply", "-f", "-", input=document_yaml("001")[0])
    control_plane.wait(lambda: "binpack-0" in stored(control_plane, namespace), "the StatefulSet's pod")
    binpack = stored(control_plane, namespace)["binpack-0"]
    assert binpack["metadata"]["annotations"]["gputile.io/memory-unit-mib"] == "128"
    assert TOLERATION in binpack["spec"]["tolerations"]
    five, by_model, mounts = document_yaml("004")
    for text, expected in ((five, ["2", "3"]), (mounts, ["1"])):
        control_plane.kubectl("-n", namespace, "apply", "-f", "-", input=text)
        result = stored(control_plane, namespace)["gpu-pod"]
        assert [limits[WHOLE] for limits in amounts(result)] == expected
        control_plane.nodes.delete_pod_now(namespace, "gpu-pod")
    # what today's API server asks for by itself, and this document leaves out: the kind's spelling, a name, an image
    body = yaml.safe_load(by_model)
    body["kind"] = "Pod"
    body["metadata"]["name"] = "by-model"
    body["spec"]["containers"][0]["image"] = "k8s.gcr.io/pause:2.0"
    control_plane.api.post(f"/api/v1/namespaces/{namespace}/pods", body)
    terms = stored(control_plane, namespace)["by-model"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["Tesla-K80", "Tesla-P100"]


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


def test_a_lost_secret_and_a_new_authority_need_no_hand(
    control_plane: ControlPlane, webhook: RunningWebhook, namespace: str
) -> None:
    """Certificates: made again when lost with the last replica, and the API server told whom to trust."""
    before = _authority(control_plane)
    control_plane.processes["webhook"].kill()
    control_plane.api.delete("/api/v1/namespaces/gputile/secrets/gputile-webhook")
    webhook.start()
    control_plane.wait(lambda: not verdict(control_plane.api, namespace, pod("g", {MEM: 1})), "a GPU pod to be taken")
    assert _authority(control_plane) != before
    assert _authority(control_plane) == _authority(control_plane, "validatingwebhookconfigurations")


def _authority(plane: ControlPlane, kind: str = "mutatingwebhookconfigurations") -> Any:
    found = plane.api.get(f"/apis/admissionregistration.k8s.io/v1/{kind}/gputile")["webhooks"]
    (bundle,) = {each["clientConfig"]["caBundle"] for each in found}
    return bundle


def test_it_ends_in_order(control_plane: ControlPlane, webhook: RunningWebhook, namespace: str) -> None:
    """After SIGTERM it is not ready, answers what still comes, and exits with 0."""
    process = control_plane.processes["webhook"]
    for _ in range(5):
        begin = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        control_plane.wait(lambda: not webhook.is_ready(), "it to say that it ends")
        answer = verdict(control_plane.api, namespace, pod("late", {MEM: 1}))
        asked_in_time = time.monotonic() - begin < 4  # it answers for five seconds
        process.stop()
        assert process.exit_code == 0
        assert "webhook stops" in process.log_text()
        webhook.start()
        if asked_in_time:
            break
    assert answer == ""


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
    control_plane.kubectl("apply", "-f", str(EXAMPLES / "policies.yaml"))
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
