"""What a hostile user with every right over pods of one namespace tried, and what happened: docs/reference/attacks.md.

Each row of the document's table is one function here, of the same name, or pods of ``hostilepods``; the table's last
column begins with the word that the test proves: "refused", "no effect" or "possible".
"""

import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANGS_S
from tests.e2e.hostilepods import ALLOCATION, HOSTILE, MEM, WHOLE, environment
from tests.localcluster.admission import AGENT, Json, RunningWebhook, installed, pod, refusal
from tests.localcluster.client import MERGE_PATCH, Api, ApiError
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import SERVICE_ACCOUNT_GROUPS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "attacks.md"
_ROW = re.compile(r"\| `(?P<id>[a-z-]+)` \| [^|]+ \| (?P<outcome>refused|no effect|possible)[^|]*\|")
TEAM, OTHER = "hostile-team", "other-team"
AUTHOR = f"system:serviceaccount:{TEAM}:author"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
STRATEGIC = "application/strategic-merge-patch+json"
REFUSED, NO_EFFECT, POSSIBLE = "refused", "no effect", "possible"


class Scene:
    """The cluster as the hostile user (``api``) and its owner (``admin``) see it; ``held`` is a pod with a GPU."""

    def __init__(self, plane: ControlPlane, webhook: RunningWebhook) -> None:
        self.plane = plane
        self.webhook = webhook
        self.admin = plane.api
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{TEAM}", "system:authenticated"]
        self.api = Api(plane.url, str(plane.ca), plane.identity(AUTHOR, groups))

    def create(self, body: Json) -> str:
        """Try to create a pod of the hostile team."""
        return refusal(self.api, "POST", PODS, body)

    def patch(self, path: str, body: Json, content_type: str = MERGE_PATCH) -> str:
        """Try to change something of the hostile team's."""
        return refusal(self.api, "PATCH", f"{PODS}/{path}", body, content_type)


@pytest.fixture(scope="module")
def scene(control_plane: ControlPlane) -> Iterator[Scene]:
    """The webhook, two teams, a user who may do everything to pods of one of them, and a pod that gputile has bound."""
    with installed(control_plane) as webhook:
        admin = control_plane.api
        control_plane.nodes.create_node("security", capacity={MEM: "100", WHOLE: "8"})
        for namespace in (TEAM, OTHER):
            control_plane.create_namespace(namespace)
        every = [
            "pods",
            "pods/status",
            "pods/binding",
            "bindings",
            "pods/ephemeralcontainers",
            "pods/resize",
            "configmaps",
        ]
        rules = [
            {"apiGroups": [""], "resources": every, "verbs": ["*"]},
            {"apiGroups": ["apps"], "resources": ["*"], "verbs": ["*"]},
        ]
        role = {"metadata": {"name": "author"}, "rules": rules}
        admin.post(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{TEAM}/roles", role)
        binding = {
            "metadata": {"name": "author"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "author"},
            "subjects": [{"kind": "ServiceAccount", "namespace": TEAM, "name": "author"}],
        }
        admin.post(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{TEAM}/rolebindings", binding)
        found = Scene(control_plane, webhook)
        webhook.configure(admission={"gangs": True})
        member = pod("p", {MEM: 1}, meta={"labels": {"scheduling.x-k8s.io/pod-group": "g"}})
        control_plane.wait(
            lambda: "schedulingGates" in admin.request("POST", PODS, member, query={"dryRun": "All"})["spec"], "gangs"
        )
        admin.post(PODS, pod("held", {MEM: 8}))
        admin.post(PODS, pod("free", {MEM: 8}))
        admin.post(PODS, pod("plain"))
        extender = "system:serviceaccount:gputile:gputile-extender"
        trusted = Api(control_plane.url, str(control_plane.ca), control_plane.identity(extender, ["system:masters"]))
        with trusted:
            trusted.post(
                f"{PODS}/held/binding",
                _binding("held", **{ALLOCATION: '{"version": 1}', "gputile.io/memory-unit-mib": "1024"}),
            )
        with found.api:
            yield found
        for namespace in (TEAM, OTHER):
            control_plane.nodes.delete_all_pods_now(namespace)
            admin.delete(f"/api/v1/namespaces/{namespace}")
    control_plane.nodes.delete_all_nodes()


def _binding(name: str, **annotations: str) -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": "security"}
    meta = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}


def _annotations(**annotations: str | None) -> Json:
    return {"metadata": {"annotations": annotations}}


def _by(said: str, rule: str) -> str:
    assert f"[{rule}]" in said, said or "it was done"
    return REFUSED


def _rbac(said: str) -> str:
    assert ": 403" in said, said or "it was done"
    return REFUSED


def _debugger(**container: Any) -> Json:
    return {"spec": {"ephemeralContainers": [{"name": "d", "image": "registry.example.com/x:1", **container}]}}


Attack = Callable[[Scene], str]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Have a function be the attack of its name."""
    ATTACKS[function.__name__.replace("_", "-")] = function
    return function


def create_each(name: str, s: Scene) -> str:
    """Try to create each pod of a row."""
    rule, bodies = HOSTILE[name]
    for body in bodies:
        _by(s.create(body), rule)
    return REFUSED


ATTACKS |= {name: partial(create_each, name) for name in HOSTILE}


@attack
def edit_own_allocation(s: Scene) -> str:
    for path, value in (("held", "{}"), ("held", None), ("held/status", "{}")):
        _by(s.patch(path, _annotations(**{ALLOCATION: value})), "forged-allocation")
    return REFUSED


@attack
def edit_by_other_subresources(s: Scene) -> str:
    for name in ("ephemeralcontainers", "resize"):
        s.patch(f"held/{name}", _annotations(**{ALLOCATION: "{}"}), STRATEGIC)
    annotations = s.admin.get(f"{PODS}/held")["metadata"]["annotations"]
    assert annotations[ALLOCATION] == '{"version": 1}'
    return NO_EFFECT


@attack
def forge_by_binding(s: Scene) -> str:
    return _by_each_binding(s, {ALLOCATION: "{}"}, "forged-allocation")


def _by_each_binding(s: Scene, annotations: Mapping[str, str], rule: str) -> str:
    """Try to bind a pod with annotations, by its subresource and by the old resource."""
    for path in ("pods/free/binding", "bindings"):
        _by(refusal(s.api, "POST", f"/api/v1/namespaces/{TEAM}/{path}", _binding("free", **annotations)), rule)
    return REFUSED


@attack
def forge_by_a_template(s: Scene) -> str:
    labels = {"app": "forged"}
    template = {"metadata": {"labels": labels, "annotations": {ALLOCATION: "{}"}}, "spec": pod("x", {MEM: 1})["spec"]}
    body = {"metadata": {"name": "forged"}, "spec": {"selector": {"matchLabels": labels}, "template": template}}
    s.api.post(f"/apis/apps/v1/namespaces/{TEAM}/replicasets", body)

    def told() -> bool:
        events = s.admin.get(f"/api/v1/namespaces/{TEAM}/events", fieldSelector="involvedObject.name=forged")["items"]
        return any("[forged-allocation]" in event["message"] for event in events)

    s.plane.wait(told, "the ReplicaSet's event")
    s.api.delete(f"/apis/apps/v1/namespaces/{TEAM}/replicasets/forged")
    assert not s.admin.get(PODS, labelSelector="app=forged")["items"]
    return REFUSED


@attack
def change_the_unit(s: Scene) -> str:
    return _by(s.patch("free", _annotations(**{"gputile.io/memory-unit-mib": "64"})), "forged-allocation")


@attack
def change_the_number_of_gpus(s: Scene) -> str:
    binding = _binding("free")
    for labels in ({"aliyun.com/gpu-count": "8"}, {"aliyun.com/gpu-count": ""}):
        for path in ("free", "free/status"):
            _by(s.patch(path, {"metadata": {"labels": labels}}), "gpu-count-changed")
        binding["metadata"]["labels"] = labels
        _by(refusal(s.api, "POST", f"{PODS}/free/binding", binding), "gpu-count-changed")
    return REFUSED


@attack
def start_without_the_gang(s: Scene) -> str:
    labels = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    assert s.create(pod("member", {MEM: 1}, meta={"labels": labels})) == ""
    gates = s.admin.get(f"{PODS}/member")["spec"].get("schedulingGates")
    assert gates == [{"name": "gputile.io/gang"}], "the webhook has to hold back the pods of gangs"
    _by(s.patch("member", {"spec": {"schedulingGates": []}}), "gang-gate")
    _by(s.patch("member", {"spec": {"schedulingGates": None}}), "gang-gate")
    for label in labels:
        for path in ("member", "member/status"):
            _by(s.patch(path, {"metadata": {"labels": {label: None}}}), "gang-gate")
    _by(s.patch("member", {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": ""}}}), "gang-gate")
    _by(s.patch("member", _annotations(**{"gputile.io/hold": "{}"})), "forged-allocation")
    assert s.patch("member", {"metadata": {"labels": {"mine": "1"}}}) == ""
    return REFUSED


@attack
def account_of_the_same_name(s: Scene) -> str:
    name = AGENT.rpartition(":")[2]
    groups = [f"system:serviceaccounts:{TEAM}", *SERVICE_ACCOUNT_GROUPS[2:], "system:masters"]
    user = s.plane.identity(f"system:serviceaccount:{TEAM}:{name}", groups)
    with Api(s.plane.url, str(s.plane.ca), user) as api:
        said = refusal(api, "PATCH", f"{PODS}/held", _annotations(**{ALLOCATION: "{}"}), MERGE_PATCH)
    return _by(said, "forged-allocation")


@attack
def all_devices_from_a_whole_map(s: Scene) -> str:
    s.api.post(
        f"/api/v1/namespaces/{TEAM}/configmaps", {"metadata": {"name": "m"}, "data": {"NVIDIA_VISIBLE_DEVICES": "all"}}
    )
    assert s.create(pod("whole-map", {MEM: 1}, container={"envFrom": [{"configMapRef": {"name": "m"}}]})) == ""
    return POSSIBLE


@attack
def all_devices_in_a_debug_container(s: Scene) -> str:
    escape = _debugger(**environment("NVIDIA_VISIBLE_DEVICES"))
    for name in ("held", "plain"):
        _by(s.patch(f"{name}/ephemeralcontainers", escape, STRATEGIC), "environment")
    assert s.patch("held/ephemeralcontainers", _debugger(), STRATEGIC) == "", "debugging itself is allowed"
    return REFUSED


@attack
def privileged_debug_container(s: Scene) -> str:
    escape = _debugger(securityContext={"privileged": True})
    return _by(s.patch("free/ephemeralcontainers", escape, STRATEGIC), "privileged")


@attack
def devices_by_annotation(s: Scene) -> str:
    device = {"cdi.k8s.io/gpu": "nvidia.com/gpu=all"}
    others = (
        *("cdi-devices.noderesource.dev/pod", "devices.noderesource.dev/pod", "mounts.noderesource.dev"),
        *("cdi-devices.nri.io/pod", "devices.nri.io/pod", "mounts.nri.io", "cdi.nri.io/pod"),
        *("nvidia.cdi.k8s.io/container.c", "devices.gke.io/container.c"),
        *("devices.crio.io", "io.kubernetes.cri-o.Devices"),
    )
    for annotations in (device, *({key: "x"} for key in others)):
        _by(s.create(pod("x", meta={"annotations": annotations})), "device-annotation")
    for path in ("plain", "plain/status", "free", "free/status"):
        _by(s.patch(path, _annotations(**device)), "device-annotation")
    return _by_each_binding(s, device, "device-annotation")


@attack
def static_by_binding(s: Scene) -> str:
    return _by_each_binding(s, {"kubernetes.io/config.mirror": "x"}, "forged-allocation")


@attack
def bind_by_hand(s: Scene) -> str:
    assert s.create(pod("by-hand", {MEM: 1})) == ""
    assert refusal(s.api, "POST", f"{PODS}/by-hand/binding", _binding("by-hand")) == ""
    found = s.admin.get(f"{PODS}/by-hand")
    assert ALLOCATION not in found["metadata"]["annotations"]
    return POSSIBLE


@attack
def open_the_namespace(s: Scene) -> str:
    label = {"metadata": {"labels": {"gputile.io/unsafe-gpu-access": "allowed"}}}
    return _rbac(refusal(s.api, "PATCH", f"/api/v1/namespaces/{TEAM}", label, MERGE_PATCH))


@attack
def remove_the_guard(s: Scene) -> str:
    base = "/apis/admissionregistration.k8s.io/v1"
    for kind in ("mutatingwebhookconfigurations/gputile", "validatingwebhookconfigurations/gputile"):
        _rbac(refusal(s.api, "DELETE", f"{base}/{kind}"))
    for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
        _rbac(refusal(s.api, "DELETE", f"{base}/{kind}/gputile-access"))
    return _rbac(refusal(s.api, "GET", "/api/v1/namespaces/gputile/secrets/gputile-webhook"))


@attack
def pods_of_others(s: Scene) -> str:
    path = f"/api/v1/namespaces/{OTHER}/pods"
    return _rbac(refusal(s.api, "POST", path, pod("x", {MEM: 1})))


@attack
def huge_pods(s: Scene) -> str:
    """Pods of half a megabyte with thousands of mistakes, many at a time, while another team works."""
    variables = [{"name": f"GPUTILE_{i:05}", "value": "x" * 560} for i in range(1_000)]
    body = pod("huge", {MEM: 1}, container={"env": variables})
    assert 500_000 < len(json.dumps(body)) < 3_000_000

    def attack(_: int) -> str:
        return s.create(body)

    with ThreadPoolExecutor(6) as crowd:
        attacks = [crowd.submit(attack, i) for i in range(24)]
        _others_work(s, 12, "beside")
        for said in (attack.result() for attack in attacks):
            assert "[environment]" in said or ": 429" in said
            assert len(said) < 20_000
    return NO_EFFECT


@attack
def long_lists(s: Scene) -> str:
    """Ordinary writes of pods that have 4,000 annotations, which rules in CEL would read one by one, and again."""
    many = {f"a{i}": "" for i in range(4_000)}
    for number in range(6):
        assert s.create(pod(f"long-{number}", meta={"annotations": many})) == ""

    def attack(number: int) -> str:
        if number % 4 == 0:
            return s.create(pod(f"longer-{number}", meta={"annotations": many}))
        place = f"long-{number % 6}" + ("/status" if number % 2 else "")
        return s.patch(place, {"metadata": {"labels": {"number": str(number)}}})

    with ThreadPoolExecutor(6) as crowd:
        attacks = [crowd.submit(attack, i) for i in range(24)]
        _others_work(s, 12, "along")
        for said in (attack.result() for attack in attacks):
            assert said == "" or ": 429" in said
    return NO_EFFECT


@attack
def silent_connections(s: Scene) -> str:
    """Whoever can reach the port opens connections and says nothing, or half a request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it trusts anybody
    with ExitStack() as held:
        for number in range(200):
            plain = held.enter_context(socket.create_connection(("127.0.0.1", s.webhook.port), timeout=HANGS_S))
            if number % 2:
                secured = held.enter_context(context.wrap_socket(plain))
                secured.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
        _others_work(s, 30, "despite")
    return NO_EFFECT


def _others_work(s: Scene, count: int, name: str) -> None:
    """Create GPU pods of another team one by one; every one has to be stored, complete."""
    for number in range(count):
        made = s.admin.post(f"/api/v1/namespaces/{OTHER}/pods", pod(f"{name}-{number}", {MEM: 1}))
        assert "gputile.io/memory-unit-mib" in made["metadata"]["annotations"]


def documented() -> dict[str, str]:
    rows = _ROW.finditer(DOCUMENT.read_text(encoding="utf-8"))
    return {row["id"]: row["outcome"] for row in rows}


def test_the_document_has_a_row_for_every_attack_and_no_other() -> None:
    assert documented().keys() == ATTACKS.keys()


@pytest.mark.requirement("B2", "G5")
@pytest.mark.parametrize("name", ATTACKS)
def test_what_the_document_says_is_what_happens(name: str, scene: Scene) -> None:
    assert ATTACKS[name](scene) == documented()[name]


def test_the_hostile_user_may_do_ordinary_things(scene: Scene) -> None:
    """The scene proves something only if the user's rights reach that far."""
    assert scene.create(pod("ordinary", {MEM: 1})) == ""
    assert scene.patch("ordinary", {"metadata": {"annotations": {"mine": "1"}}}) == ""
    with pytest.raises(ApiError):
        scene.api.get("/api/v1/nodes")
