"""A manifest that a cluster would not take is not taken here, and says what is wrong where."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.cli.app import app
from gputile.tools.simulator.admission.chain import Admission
from gputile.tools.simulator.cluster.intake import Intake
from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError
from gputile.tools.simulator.rules.values.fields import broken_fields
from gputile.tools.simulator.rules.values.strictness import Validation
from gputile.tools.simulator.rules.workloads.kinds import template_path
from gputile.tools.simulator.rules.workloads.known_kinds import PodKinds
from gputile.tools.simulator.rules.workloads.pod_kinds import PodKind, PodsOfKind
from tests.api_rules import BREAKING, TAKEN
from tests.manifests import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    FORBIDDEN,
    JOB,
    MEM,
    POD,
    REFUSED,
    REPLICATION_CONTROLLER,
    RICH,
    STATEFUL_SET,
    VALID,
    Case,
    Json,
    changed,
    ids,
)
from tests.unit.tools.simulator.builders import load_text, node, write

pytestmark = pytest.mark.requirement("B4")

run = CliRunner()
CLUSTER = (
    "apiVersion: gputile.io/v1alpha1\nkind: Cluster\n"
    "nodes: [{name: 'n', mode: share, gpus: {count: 2, memory: 15GiB}}]\n"
)
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}


def verdict(tmp_path: Path, *bodies: Json, intake: Intake | None = None) -> str:
    """Return why the objects are refused, "" where they are not."""
    try:
        expand(load_text(tmp_path, "\n".join(map(json.dumps, bodies))).manifests, [node("n")], intake)
    except ManifestError as error:
        return str(error)
    return ""


def simulate(tmp_path: Path, text: str, *options: str) -> tuple[int, str]:
    files = ["--cluster", write(tmp_path, CLUSTER, "cluster.yaml"), "-f", write(tmp_path, text)]
    result = run.invoke(app, ["simulate", *files, *options])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr


@pytest.mark.parametrize("body", [*VALID, *TAKEN], ids=range(len(VALID) + len(TAKEN)))
def test_what_is_right_is_taken(tmp_path: Path, body: Json) -> None:
    assert verdict(tmp_path, body) == ""


@pytest.mark.parametrize("case", [*REFUSED, *BREAKING, *FORBIDDEN], ids=ids([*REFUSED, *BREAKING, *FORBIDDEN]))
def test_what_is_wrong_is_refused_with_file_document_and_field(tmp_path: Path, case: Case) -> None:
    said = verdict(tmp_path, case.body)
    assert case.said in said
    assert all(line.startswith(f"{tmp_path / 'm.yaml'}, document 1: ") for line in said.split("\n"))


@pytest.mark.parametrize("case", [*REFUSED[::9], *FORBIDDEN[::3]], ids=ids([*REFUSED[::9], *FORBIDDEN[::3]]))
def test_the_exit_code_is_2(tmp_path: Path, case: Case) -> None:
    code, said = simulate(tmp_path, json.dumps(case.body))
    assert (code, case.said in said) == (2, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hostname: h\n  nodeSelector:", ""),
        ("nodeSelectr:", "spec.nodeSelectr: unknown field; did you mean nodeSelector?"),
        ("nodeSelectr: null", "spec.nodeSelectr: unknown field; did you mean nodeSelector?"),
        ("nodeSelector: {zone: y}", 'spec.nodeSelector["zone"]: must be a string, is a boolean: write it in quotes'),
        ("nodeSelector: {zone: 1e3}", 'spec.nodeSelector["zone"]: must be a string, is a number: write it in quotes'),
        ("terminationGracePeriodSeconds: 30.0", ""),
        ("terminationGracePeriodSeconds: 0o36", ""),
    ],
)
def test_what_is_written_is_read_as_kubectl_reads_it(tmp_path: Path, text: str, said: str) -> None:
    """A field without a value is a field too, and scalars without quotes are what Kubernetes' YAML makes of them."""
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i}]\n  "
    code, told = simulate(tmp_path, f"{pod}{text}\n")
    assert said in told
    assert (code == 2) == bool(said)


@pytest.mark.parametrize(
    ("version", "kind", "rest", "said"),
    [
        ("v1", "ConfigMap", {"data": {"port": "80"}}, ""),
        ("v1", "ConfigMap", {"data": {"port": 80}}, 'data["port"]: must be a string, is a number: write it in quotes'),
        ("v1", "ConfigMap", {"metadata": {"name": "A_b"}}, 'metadata.name: Invalid value: "A_b"'),
        ("v1", "ConfigMap", {"metadata": {}}, "metadata.name: Required value"),
        ("v1", "Namespace", {"metadata": {"name": ["a"]}}, "metadata.name: must be a string, is a list"),
        ("v1", "LimitRange", {"metadata": {}, "spec": {"limits": []}}, ""),
        ("policy/v1", "PodDisruptionBudget", {"metadata": {"name": "A b"}}, ""),
        ("v1", "ConfigMap", {"metadata": {"name": "a", "lables": {}}}, "lables: unknown field; did you mean labels?"),
        ("v1", "ConfigMap", {"data": {"a b": ""}}, 'data["a b"]: Invalid value: must be no more than 253 letters'),
        ("v1", "ConfigMap", {"data": {"..": ""}}, 'data[".."]: Invalid value'),
        ("v1", "ConfigMap", {"binaryData": {"a": "!"}}, 'binaryData["a"]: must be base64: write plain text into data'),
        ("v1", "ConfigMap", {"data": {"a": ""}, "binaryData": {"a": ""}}, "duplicate of key present in binaryData"),
        ("v1", "Secret", {"stringData": {"a b": ""}}, 'stringData["a b"]: Invalid value'),
        ("v1", "Service", {"spec": {}}, "spec.ports: Required value"),
        ("v1", "Service", {"spec": {"clusterIP": "None"}}, ""),
        ("v1", "Service", {"spec": {"ports": [{"port": 0}]}}, "spec.ports[0].port: Invalid value: 0"),
        ("v1", "Service", {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 0}]}}, ""),
        ("v1", "Service", {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000}]}}, ""),
        ("v1", "Service", {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 32767}]}}, ""),
        (
            "v1",
            "Service",
            {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 29999}]}},
            "spec.ports[0].nodePort: Invalid value: 29999: provided",
        ),
        (
            "v1",
            "Service",
            {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 70000}]}},
            "the default range 30000-32767",
        ),
        ("v1", "Service", {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": -1}]}}, "Invalid value: -1"),
        (
            "v1",
            "Service",
            {
                "spec": {
                    "type": "LoadBalancer",
                    "externalTrafficPolicy": "Local",
                    "ports": [{"port": 80}],
                    "healthCheckNodePort": 80,
                }
            },
            "spec.healthCheckNodePort: Invalid value: 80: provided port is not in the default range",
        ),
        ("v1", "Service", {"spec": {"sessionAffinityConfig": {"clientIP": {}}, "ports": [{"port": 80}]}}, ""),
        ("v1", "Service", {"spec": {"ports": [{"port": 1}, {"port": 2}]}}, "spec.ports[0].name: Required value"),
        ("v1", "Service", {"spec": {"ports": [{"port": 1, "name": "a.b"}]}}, "spec.ports[0].name: Invalid value"),
        ("v1", "PersistentVolumeClaim", {"spec": {"accessModes": ["ReadWriteOnce"]}}, '["storage"]: Required value'),
        ("policy/v1", "PodDisruptionBudget", {"spec": {"minAvailable": 1, "maxUnavailable": 1}}, "cannot be both set"),
        ("v1", "Secret", {"data": {"key": "cGxhaW4="}}, ""),
        ("v1", "Secret", {"data": {"key": "plain text"}}, 'data["key"]: must be base64: write plain text into'),
        ("v1", "Service", {"spec": {"prots": []}}, "spec.prots: unknown field; did you mean ports?"),
        ("v1", "Service", {"spec": {"ports": [{"port": "80"}]}}, "spec.ports[0].port: must be a whole number"),
        ("v1", "PersistentVolumeClaim", {"spec": {"accessMode": []}}, "did you mean accessModes?"),
        ("policy/v1", "PodDisruptionBudget", {"spec": {"minAvaliable": 1}}, "did you mean minAvailable?"),
        ("autoscaling/v2", "HorizontalPodAutoscaler", {"spec": {"maxReplica": 3}}, "did you mean maxReplicas?"),
        ("networking.k8s.io/v1", "Ingress", {"spec": {"rule": []}}, "spec.rule: unknown field; did you mean rules?"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole", {"metadata": {"name": "system:A_b"}, "rules": []}, ""),
        ("rbac.authorization.k8s.io/v1", "Role", {"rule": []}, "rule: unknown field; did you mean rules?"),
        ("scheduling.k8s.io/v1", "PriorityClass", {"value": 5, "globaldefault": True}, "did you mean globalDefault?"),
    ],
)
def test_objects_beside_the_workloads_are_checked_too(
    tmp_path: Path, version: str, kind: str, rest: Json, said: str
) -> None:
    found = verdict(tmp_path, {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, **rest}, POD)
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("version", "kind", "note"),
    [
        ("v1", "PersistentVolume", "the values of this kind are not checked, only its fields are"),
        ("v1", "Endpoints", "this kind is not checked, only its metadata is"),
        ("kueue.x-k8s.io/v1beta1", "LocalQueue", "this kind is not checked, only its metadata is"),
        ("v1", "ConfigMap", ""),
        ("v1", "LimitRange", ""),
        ("v1", "ResourceQuota", "only what is in the files is counted"),
    ],
)
def test_what_is_not_checked_is_said(tmp_path: Path, version: str, kind: str, note: str) -> None:
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}}
    found = expand(load_text(tmp_path, json.dumps(body)).manifests, [])
    assert [each.text for each in found.notes] == [note] * bool(note)
    assert "metadata.name: Invalid value" in verdict(tmp_path, changed(body, "metadata.name", "A b"))
    assert "metadata.lables: unknown field" in verdict(tmp_path, changed(body, "metadata.lables", {}))


def test_a_limit_range_of_claims_is_said_not_to_be_judged(tmp_path: Path) -> None:
    entry = {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "a"}, "spec": {"limits": [entry]}}
    found = expand(load_text(tmp_path, json.dumps(body)).manifests, [])
    assert [each.text for each in found.notes] == ["of what it bounds, claims are not judged"]


def test_all_mistakes_of_all_objects_are_told_at_once(tmp_path: Path) -> None:
    twice = changed(changed(POD, "spec.nodeSelectr", {}), "spec.containers.0.image", 1)
    negative, unknown = changed(JOB, "spec.parallelism", -1), changed(DEPLOYMENT, "spec.replica", 1)
    said = verdict(tmp_path, twice, negative, unknown).split("\n")
    assert [line.partition(": ")[0].rpartition(" ")[2] for line in said] == ["1", "1", "2", "3"]
    many = [changed(POD, "metadata.name", f"A{i}") for i in range(60)]
    assert verdict(tmp_path, *many).split("\n")[-1] == "and 10 more mistakes"


@pytest.mark.parametrize(
    ("scheduler", "noted"), [("", False), ("default-scheduler", False), ("ours", False), ("other", True)]
)
@pytest.mark.parametrize("gpu", [True, False])
def test_another_scheduler_is_believed_to_decide_alike(tmp_path: Path, scheduler: str, noted: bool, gpu: bool) -> None:
    body = changed(POD, "spec.schedulerName", scheduler)
    body = body if gpu else changed(body, "spec.containers.0.resources", {})
    manifests = load_text(tmp_path, json.dumps(body)).manifests
    notes = expand(manifests, [], Intake(Admission(Configuration(scheduler_name="ours")))).notes
    said = "spec.schedulerName: other is believed to decide as kube-scheduler does"
    said += ", and to ask gputile which GPU the pod gets" if gpu else ""
    assert [note.text for note in notes] == [said] * noted


def test_what_admission_refuses_passes_without_it(tmp_path: Path) -> None:
    """The percentage beside memory is left to the decision then; a pod on a node of its own choice is never judged."""
    off = Intake(Admission(enforced=False))
    decided = [case for case in FORBIDDEN if "nodeName" not in case.body["spec"]]
    assert [verdict(tmp_path, case.body, intake=off) for case in decided] == [""] * len(decided)
    assert len(decided) == len(FORBIDDEN) - 1
    visible = json.dumps(FORBIDDEN[0].body)
    assert simulate(tmp_path, visible)[0] == 2
    assert simulate(tmp_path, visible, "--admission=off")[0] == 3, "nothing tolerates the taint of GPU nodes then"


@pytest.mark.requirement("G7", "M13", "U5")
def test_admission_completes_pods_as_the_webhook_does(tmp_path: Path) -> None:
    kind = "pod-group.scheduling.sigs.k8s.io"
    body = changed(POD, "metadata.labels", {f"{kind}/name": "g", f"{kind}/min-available": "2"})
    configuration = Configuration(gpu_memory_unit="128MiB", admission=AdmissionConfiguration(gangs=True))
    (pod,) = expand(load_text(tmp_path, json.dumps(body)).manifests, [], Intake(Admission(configuration))).pods
    assert pod.metadata.annotations == {"gputile.io/memory-unit-mib": "128"}
    assert [gate.name for gate in pod.spec.scheduling_gates] == ["gputile.io/gang"]
    assert [(each.key, each.operator, each.effect) for each in pod.spec.tolerations] == [
        ("nvidia.com/gpu", "Exists", "NoSchedule")
    ]


def test_a_namespace_with_unsafe_access_may(tmp_path: Path) -> None:
    """As the namespace's label in the same files says."""
    allowed = changed(NAMESPACE, "metadata.labels", {"gputile.io/unsafe-gpu-access": "allowed"})
    visible = FORBIDDEN[0].body
    assert "[environment]" in verdict(tmp_path, NAMESPACE, visible)
    assert verdict(tmp_path, allowed, visible) == ""
    known = Intake(Admission(unsafe=frozenset({"default"})))
    assert verdict(tmp_path, visible, intake=known) == ""
    assert "[environment]" in verdict(tmp_path, NAMESPACE, visible, intake=known)
    foreign = changed(allowed, "apiVersion", "example.com/v1")
    kinds = PodKinds({("example.com/v1", "Namespace"): PodKind(api_version="example.com/v1", kind="Namespace")})
    assert "[environment]" in verdict(tmp_path, foreign, visible, intake=Intake(kinds=kinds))


@pytest.mark.parametrize(("level", "noted"), [("restricted", True), ("baseline", True), ("privileged", False)])
def test_the_level_of_pod_security_is_not_applied(tmp_path: Path, level: str, noted: bool) -> None:
    body = changed(NAMESPACE, "metadata.labels", {"pod-security.kubernetes.io/enforce": level})
    found = expand(load_text(tmp_path, json.dumps(body)).manifests, [])
    assert [each.text for each in found.notes] == [f"its pods are not judged by the Pod Security level {level}"] * noted


@pytest.mark.parametrize(("key", "noted"), [("team", True), ("kubernetes.io/metadata.name", False)])
def test_a_selector_of_namespaces_knows_their_names(tmp_path: Path, key: str, noted: bool) -> None:
    selector = {"matchLabels": {key: "default"}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaceSelector": selector}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pods = [changed(changed(POD, "spec.affinity", rule), "metadata.name", name) for name in "ab"]
    code, said = simulate(tmp_path, "\n".join(map(json.dumps, pods)))
    assert code == (0 if noted else 3), said
    assert ("as if namespaces had no label but their name" in said) == noted


def test_unknown_fields_are_notes_where_one_asks_for_that(tmp_path: Path) -> None:
    body = changed(POD, "spec.nodeSelectr", {})
    manifests = load_text(tmp_path, json.dumps(body)).manifests
    assert "unknown field" in expand(manifests, [], Intake(validate=Validation.WARN)).notes[0].text
    assert expand(manifests, [], Intake(validate=Validation.IGNORE)).notes == []
    assert simulate(tmp_path, json.dumps(body), "--validate=warn")[0] == 0
    assert simulate(tmp_path, json.dumps(body), "--validate", "strict")[0] == 2
    wrong = changed(body, "spec.containers.0.image", 1)
    assert "must be a string" in verdict(tmp_path, wrong, intake=Intake(validate=Validation.IGNORE))


def test_what_an_api_server_has_stored_is_not_judged_again(tmp_path: Path) -> None:
    """A cluster may be newer than what is known here, and what gputile wrote is no forgery."""
    stored = changed(FORBIDDEN[3].body, "metadata.uid", "a-b")
    stored = changed(changed(stored, "spec.nodeName", "n"), "status", {"phase": "Running", "new": 1})
    manifests = load_text(tmp_path, json.dumps(stored)).manifests
    (pod,) = (expansion := expand(manifests, [])).pods
    assert (pod.spec.node_name, "gputile.io/allocation" in pod.metadata.annotations) == ("n", True)
    assert ["status.new: unknown field" in note for note in map(str, expansion.notes)] == [False, True]


@pytest.mark.parametrize(
    ("body", "fields", "said"),
    [
        (STATEFUL_SET, {"spec.updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}, "0: cannot be 0"),
        (STATEFUL_SET, {"spec.updateStrategy": {"rollingUpdate": {"maxUnavailable": "0%"}}}, "0: cannot be 0"),
        (
            STATEFUL_SET,
            {"spec.updateStrategy": {"rollingUpdate": {"maxUnavailable": "x"}}},
            '"x": must be a whole number',
        ),
        (
            STATEFUL_SET,
            {"spec.updateStrategy": {"rollingUpdate": {"maxUnavailable": "101%"}}},
            "not be greater than 100%",
        ),
        (POD, {"stop": "SIGTERM"}, "stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`"),
        (POD, {"stop": "NOPE", "spec.os": {"name": "linux"}}, 'stopSignal: Unsupported value: "NOPE"'),
        (POD, {"stop": "", "spec.os": {"name": "linux"}}, 'stopSignal: Unsupported value: ""'),
        (POD, {"stop": "SIGINT", "spec.os": {"name": "windows"}}, 'values: "SIGKILL", "SIGTERM"'),
    ],
    ids=str,
)
def test_features_that_are_on_in_some_versions_only_are_judged(
    tmp_path: Path, body: Json, fields: Json, said: str
) -> None:
    """An API server that has MaxUnavailableStatefulSet or ContainerStopSignals off drops these fields."""
    for path, value in fields.items():
        where = "spec.containers.0.lifecycle" if path == "stop" else path
        body = changed(body, where, {"stopSignal": value} if path == "stop" else value)
    assert said in verdict(tmp_path, body)


@pytest.mark.parametrize(("system", "code"), [("linux", 0), ("windows", 3)])
def test_a_kubelet_rejects_pods_of_another_operating_system(tmp_path: Path, system: str, code: int) -> None:
    """kube-scheduler does not look at it; described nodes are Linux."""
    found = simulate(tmp_path, json.dumps(changed(POD, "spec.os", {"name": system})), "-o", "wide")
    assert found[0] == code


def running(name: str, uid: str, cpu: str, **status: Any) -> Json:
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}
    metadata = {"name": name, "namespace": "default", "uid": uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def test_a_running_pod_takes_what_it_is_resized_from(tmp_path: Path) -> None:
    """The node has 128 CPU, of which the pod that shrinks to one still has 124."""
    new = changed(POD, "spec.containers.0.resources", {"requests": {"cpu": "5"}})
    new = changed(new, "spec.tolerations", [{"operator": "Exists"}])
    has = {"name": "c", "ready": True, "restartCount": 0, "image": "i", "imageID": "i"}
    for cpu, code in (("124", 3), ("123", 0)):
        status = {"containerStatuses": [{**has, "resources": {"requests": {"cpu": cpu}}}]}
        objects = "\n".join(map(json.dumps, (running("old", "u", "1", **status), new)))
        assert simulate(tmp_path, objects)[0] == code


def test_two_pods_are_not_one(tmp_path: Path) -> None:
    """What a pod takes is kept by its UID."""
    said = verdict(tmp_path, running("p", "u", "1"), running("q", "u", "2"))
    assert said == f"{tmp_path / 'm.yaml'}, document 2: Pod/q: metadata.uid: the pod default/p has this UID already"


@pytest.mark.parametrize(
    ("body", "name", "prefix", "said"),
    [
        (STATEFUL_SET, "a" * 52, "", ""),
        (
            STATEFUL_SET,
            "a" * 53,
            "",
            "a StatefulSet whose name has more than 52 characters never makes a pod: the label",
        ),
        (STATEFUL_SET, "", "a" * 46 + "-", ""),
        (STATEFUL_SET, "", "a" * 47 + "-", "metadata.generateName: Invalid value"),
        (DEPLOYMENT, "a" * 253, "", ""),
        (DEPLOYMENT, "", "a" * 253, ""),
        (DAEMON_SET, "a" * 253, "", ""),
        (REPLICATION_CONTROLLER, "a" * 253, "", ""),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else str(value)[-9:],
)
def test_a_name_leaves_room_for_what_controllers_add(
    tmp_path: Path, body: Json, name: str, prefix: str, said: str
) -> None:
    named = changed(body, "metadata", {"name": name} if name else {"generateName": prefix})
    found = verdict(tmp_path, named)
    assert said in found
    assert bool(found) == bool(said)


@pytest.mark.parametrize("amount", [{MEM: 1}, {}], ids=["GPU", "none"])
@pytest.mark.parametrize("port", [{"hostPort": 80}, {}], ids=["port", "network"])
def test_two_pods_of_a_node_do_not_have_one_port_of_it(tmp_path: Path, port: Json, amount: Json) -> None:
    body = changed(DEPLOYMENT, "spec.template.spec.containers.0.ports", [{"containerPort": 80, **port}])
    body = changed(body, "spec.template.spec.hostNetwork", not port)
    body = changed(body, "spec.template.spec.containers.0.resources.limits", amount)
    body = changed(body, "spec.template.spec.tolerations", [{"operator": "Exists"}])
    assert simulate(tmp_path, json.dumps(changed(body, "spec.replicas", 1)), "-o", "wide") == (0, "")
    files = ["--cluster", write(tmp_path, CLUSTER, "cluster.yaml"), "-f", write(tmp_path, json.dumps(body))]
    result = run.invoke(app, ["simulate", *files, "-o", "json"])
    placed, refused = json.loads(result.stdout)["decisions"]
    assert (result.exit_code, placed["node"], refused["node"]) == (3, "n", None)
    assert "1 node(s) didn't have free ports for the requested pod ports (n)" in refused["reason"]


@pytest.mark.parametrize("body", [DEPLOYMENT, JOB, REPLICATION_CONTROLLER, CRON_JOB], ids=lambda body: body["kind"])
def test_a_stored_object_without_a_template_cannot_be_judged(tmp_path: Path, body: Json) -> None:
    path = ".".join(template_path(body["kind"]))
    stored = changed(changed(body, "metadata.uid", "a-b"), path, {})
    assert f"{path}.spec.containers: Required value" in verdict(tmp_path, stored)


def test_a_version_without_a_uid_is_no_stored_object(tmp_path: Path) -> None:
    versioned = changed(POD, "metadata.resourceVersion", "5")
    assert "metadata.resourceVersion: Forbidden: should not be set" in verdict(tmp_path, versioned)
    assert verdict(tmp_path, changed(versioned, "metadata.uid", "a-b")) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing",
        "null",
        "---",
        "---\n---",
        "items: null\nkind: List\napiVersion: v1",
        "[]",
        '{"kind": "PodList", "apiVersion": "v1", "items": []}',
    ],
)
def test_nothing_is_no_success(tmp_path: Path, text: str) -> None:
    assert simulate(tmp_path, text)[0] == 2
    result = run.invoke(app, ["simulate", "--cluster", write(tmp_path, CLUSTER, "cluster.yaml"), "-f", "-"], input=text)
    assert result.exit_code == 2


def test_files_without_pods_are_right_and_say_so(tmp_path: Path) -> None:
    code, said = simulate(tmp_path, json.dumps(NAMESPACE))
    assert (code, "the files ask for no pod, so there is nothing to place" in said) == (0, True)


def test_a_label_that_means_nothing_is_named(tmp_path: Path) -> None:
    odd = CLUSTER.replace("mode: share", "mode: share, labels: {ack.node.gpu.placement: foo}")
    pods = write(tmp_path, json.dumps(NAMESPACE), "pods.yaml")
    result = run.invoke(app, ["simulate", "--cluster", write(tmp_path, odd, "cluster.yaml"), "-f", pods])
    assert result.exit_code == 0
    said = result.stderr.replace("\n", "")
    assert "label ack.node.gpu.placement is 'foo' and is ignored; valid are binpack, spread, packing" in said


Steps = tuple[Any, ...]


def mappings(value: Any, path: Steps = ()) -> list[Steps]:
    """Return where mappings with fields stand, but not maps of labels and the like."""
    found = [path] if isinstance(value, dict) and not (path and path[-1] in MAPS) else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*found, *(each for key, item in items for each in mappings(item, (*path, key)) if key not in MAPS)]


MAPS = {"labels", "annotations", "nodeSelector", "matchLabels", "limits", "requests"}
SEEDS = [body for body in VALID if body["kind"] != "ReplicationController"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_a_field_with_a_typing_error_never_passes(tmp_path: Path, data: st.DataObject) -> None:
    """Wherever it stands: a letter more or fewer makes a field that there is not."""
    body = copy.deepcopy(data.draw(st.sampled_from(SEEDS)))
    target: Any = body
    for step in data.draw(st.sampled_from([path for path in mappings(body) if path])):
        target = target[step]
    name = data.draw(st.sampled_from(sorted(target))) if target else "x"
    at = data.draw(st.integers(0, len(name) - 1))
    letter = data.draw(st.sampled_from("aeiost"))
    wrong = data.draw(st.sampled_from([name[:at] + name[at + 1 :], name[:at] + letter + name[at:], name.swapcase()]))
    if wrong in target or not wrong:
        return
    target[wrong] = target.pop(name, "x")
    assert "unknown field" in verdict(tmp_path, body)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_whatever_is_written_the_answer_is_a_verdict(tmp_path: Path, data: st.DataObject) -> None:
    """No traceback; and what is taken has the fields that there are."""
    body = copy.deepcopy(data.draw(st.sampled_from([RICH, *VALID])))
    for _ in range(data.draw(st.integers(1, 3))):
        target: Any = body
        while isinstance(target, dict | list) and target:
            key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else list(range(len(target)))))
            inner = target[key]
            if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
                target[key] = data.draw(VALUES)
                break
            target = inner
    type_name = {"Pod": "core.v1.Pod", "Job": "batch.v1.Job", "Deployment": "apps.v1.Deployment"}.get(
        str(body.get("kind"))
    )
    said = verdict(tmp_path, body)
    if not said and type_name:
        assert broken_fields(type_name, body) == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(("name", "taken"), [(189, True), (190, False)])
def test_the_claim_of_a_volume_has_a_name_that_claims_can_have(tmp_path: Path, name: int, taken: bool) -> None:
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volume = {"name": "v" * 63, "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}
    said = verdict(tmp_path, changed(changed(POD, "metadata.name", "p" * name), "spec.volumes", [volume]))
    assert ("spec.volumes[0].name: the claim that its pod waits for cannot be made" in said) is not taken


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "Training"])
@pytest.mark.parametrize(
    ("size", "said"),
    [
        (1_500_000, ""),
        (1_600_000, "request is too large: it has 1,600,0.. bytes of text, and etcd takes 1,572,864"),
        (3_200_000, "Request entity too large: it has 3,200,... bytes as JSON, and an API server takes 3,145,728"),
    ],
)
def test_an_object_that_cannot_be_stored_is_refused(tmp_path: Path, kind: str, size: int, said: str) -> None:
    path = "spec.containers.0.args" if kind == "Pod" else "spec.template.spec.containers.0.args"
    body = changed(POD if kind == "Pod" else DEPLOYMENT, path, ["x" * size])
    kinds = PodKinds()
    if kind == "Training":
        body |= {"kind": kind, "apiVersion": "example.com/v1"}
        rule = PodsOfKind(template="spec.template")
        kinds = PodKinds({("example.com/v1", kind): PodKind(api_version="example.com/v1", kind=kind, pods=(rule,))})
    found = verdict(tmp_path, body, intake=Intake(kinds=kinds))
    assert re.search(said, found) if said else found == ""


def configuration(size: int, **annotations: str) -> Json:
    metadata = {"name": "c", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "x" * size}}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (configuration(261_000), []),
        (configuration(262_144), ["--server-side"]),
        (configuration(200_000), []),
        (configuration(60_000, a="x" * 110_000), ["--server-side"]),
        (
            changed(POD, "metadata.labels", {f"label-number-{i}": "v" for i in range(60_000)}),
            ["--server-side", "is not judged"],
        ),
        (changed(POD, "spec.containers.0.args", ["x" * 1_500_000]), ["--server-side"]),
    ],
    ids=range(6),
)
def test_an_object_that_may_be_too_large_is_told(tmp_path: Path, body: Json, told: list[str]) -> None:
    """An API server was asked about the first two, and about more labels: it stores who wrote each of them."""
    notes = [note.text for note in expand(load_text(tmp_path, json.dumps(body)).manifests, []).notes]
    large = [note for note in notes if "bytes" in note]
    assert [each in note for each, note in zip(told, large, strict=True)] == [True] * len(told), large


@pytest.mark.parametrize("body", [POD, DEPLOYMENT], ids=lambda body: body["kind"])
@pytest.mark.parametrize(("priority", "said"), [(10, ""), (0, "has 10"), (11, "has 10")])
def test_a_priority_may_be_that_of_the_default_class(tmp_path: Path, body: Json, priority: int, said: str) -> None:
    default: Json = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "c"}}
    default |= {"value": 10, "globalDefault": True}
    path = "spec.priority" if body["kind"] == "Pod" else "spec.template.spec.priority"
    found = verdict(tmp_path, default, changed(body, path, priority))
    assert said in found if said else found == ""


INDEXED = changed(CRON_JOB, "spec.jobTemplate.spec.completionMode", "Indexed")


@pytest.mark.parametrize(
    ("completions", "name", "labels", "said"),
    [
        (2, "c", {}, ""),
        (2, "a.b", {}, "metadata.name: Invalid value: .*a.b-29000000-1, which is no RFC 1123 label"),
        (10, "x" * 52, {}, ""),
        (11, "x" * 52, {}, "metadata.name: Invalid value: .*-10, which is no RFC 1123 label"),
        *(
            (2, "c", {label: "x"}, r"spec\.jobTemplate\.spec\.template\.metadata\.labels.*: the Job sets it itself")
            for label in ("job-name", "batch.kubernetes.io/job-name", "controller-uid")
        ),
    ],
)
def test_jobs_of_a_cron_job_that_would_be_refused(
    tmp_path: Path, completions: int, name: str, labels: Json, said: str
) -> None:
    """Its controller makes each one anew, and the API server takes none."""
    body = changed(changed(INDEXED, "spec.jobTemplate.spec.completions", completions), "metadata.name", name)
    found = verdict(tmp_path, changed(body, "spec.jobTemplate.spec.template.metadata.labels", labels))
    assert re.search(said, found) if said else found == ""


@pytest.mark.parametrize(
    ("surge", "made"),
    [
        ("1" * 20 + "%", False),
        ("1" * 5_000 + "%", False),
        ("9223372036854775807%", True),
        ("999999999999999999%", True),
        ("100000000000%", False),
        ("71582788267%", False),
        (2147483647, False),
        (2147483644, True),
        ("0025%", True),
        ("0" * 5_000 + "25%", True),
        ("4294967396%", True),
        ("2147483648%", True),
    ],
    ids=lambda value: str(value)[:25],
)
def test_a_surge_that_its_controller_can_count(tmp_path: Path, surge: int | str, made: bool) -> None:
    """Of these Deployments, all taken by an API server, a real controller made pods of some."""
    body = changed(changed(DEPLOYMENT, "spec.replicas", 3), "spec.strategy", {"rollingUpdate": {"maxSurge": surge}})
    said = verdict(tmp_path, body)
    assert ("the Deployment never makes a pod" in said) == (not made), said
    assert (said == "") == made


NEWER: Json = {f"u{i}": 1 for i in range(30)}


@pytest.mark.parametrize(
    ("body", "path", "value", "said"),
    [
        (POD, "spec", 5, "spec: must be a mapping"),
        (POD, "spec.containers.0.ports", "x", "spec.containers[0].ports: must be a list"),
        (POD, "spec.containers.0.resources.limits", {"cpu": "lots"}, '["cpu"]'),
        (POD, "spec.dnsPolicy", "Bogus", 'spec.dnsPolicy: Unsupported value: "Bogus"'),
        (DEPLOYMENT, "spec.template", 5, "spec.template: must be a mapping"),
        (CRON_JOB, "spec.schedule", 5, "spec.schedule: must be a string"),
        (DAEMON_SET, "spec.minReadySeconds", "x", "spec.minReadySeconds: must be a whole number"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) and "kind" in value else "",
)
@pytest.mark.parametrize("option", ["--validate=warn", "--validate=ignore", "uid"])
def test_unknown_fields_hide_no_other_mistake(
    tmp_path: Path, body: Json, path: str, value: object, said: str, option: str
) -> None:
    """However many there are before it."""
    newer = {**NEWER, **changed(body, path, value)}
    options = [option]
    if option == "uid":
        newer, options = changed(newer, "metadata.uid", EXPORTED), []
    code, told = simulate(tmp_path, json.dumps(newer), *options)
    assert (code, said in told) == (2, True), told


@pytest.mark.parametrize("limits", [5, [{"type": "Container", "max": {"cpu": "lots"}}]], ids=str)
def test_a_limit_range_with_many_unknown_fields_is_refused(tmp_path: Path, limits: object) -> None:
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, **NEWER, "spec": {"limits": limits}}
    assert simulate(tmp_path, json.dumps(body))[0] == 2
    assert simulate(tmp_path, json.dumps(body), "--validate=warn")[0] == 2


def test_fields_that_are_missing_hide_no_other_mistake(tmp_path: Path) -> None:
    """Those of kinds whose values are not judged need not be there."""
    taints: list[Json] = [{} for _ in range(30)]
    node: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}, "spec": {"taints": taints}}
    assert simulate(tmp_path, json.dumps(node))[0] == 0
    code, told = simulate(tmp_path, json.dumps({**node, "status": 5}))
    assert (code, "status: must be a mapping" in told) == (2, True), told


def test_a_mistyped_resource_is_told_beside_the_reason(tmp_path: Path) -> None:
    body = changed(POD, "spec.containers.0.resources", {"limits": {"aliyun.com/gpu-memm": 1}})
    code, told = simulate(tmp_path, json.dumps(body))
    said = 'spec.containers[0].resources.limits: no node offers "aliyun.com/gpu-memm"; did you mean aliyun.com/gpu-mem?'
    assert (code, said in told) == (3, True), told


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("k.yaml", "{apiVersion: kustomize.config.k8s.io/v1beta1, kind: Kustomization}", "kustomize build DIR |"),
        ("kustomization.yaml", "resources: [p.yaml]", "kustomize build DIR |"),
        ("Chart.yaml", "{apiVersion: v2, name: x}", "helm template CHART |"),
    ],
)
def test_what_is_built_first_is_told(tmp_path: Path, name: str, text: str, said: str) -> None:
    files = ["--cluster", write(tmp_path, CLUSTER, "cluster.yaml"), "-f", write(tmp_path, text, name)]
    result = run.invoke(app, ["simulate", *files])
    assert (result.exit_code, f"{said} gputile simulate -f -" in result.stderr) == (2, True), result.stderr


def test_a_cluster_alone_is_no_question(tmp_path: Path) -> None:
    """As with a variable of file names that is empty, in a pipeline that would go on."""
    found = run.invoke(app, ["simulate", "--cluster", write(tmp_path, CLUSTER, "cluster.yaml")])
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith("error: no workloads are named, so there is nothing to place: name files by -f;")


EXPORTED = "5f1d8a7e-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("body", "path", "value", "said"),
    [
        (DEPLOYMENT, "spec.selector.matchLabels", {"app": "zzz"}, "`selector` does not match template `labels`"),
        (DEPLOYMENT, "spec.template.spec.containers.0.image", "", "Required value"),
        (POD, "spec.containers.0.name", "A B", "spec.containers[0].name"),
        (
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}},
            "spec.ports.0.nodePort",
            30001,
            "may not be used when `type` is 'ClusterIP'",
        ),
    ],
    ids=["selector", "image", "Pod", "Service"],
)
def test_a_file_is_judged_though_its_object_has_a_uid(
    tmp_path: Path, body: Json, path: str, value: object, said: str
) -> None:
    """Whoever exports an object may change it."""
    named = changed(changed(body, "metadata.uid", EXPORTED), "metadata.resourceVersion", "7")
    assert simulate(tmp_path, json.dumps(named))[0] == 0
    code, told = simulate(tmp_path, json.dumps(changed(named, path, value)))
    assert (code, said in told) == (2, True), told


@pytest.mark.parametrize("status", [{}, {"phase": "Running"}, {"phase": "Succeeded"}], ids=str)
def test_a_pod_that_counts_as_running_is_told(tmp_path: Path, status: Json) -> None:
    """Only a cluster knows whether it is true; one that describes a cluster says nothing else."""
    pod = running("w", EXPORTED, "1", **status)
    code, told = simulate(tmp_path, json.dumps(pod))
    assert (code, "counts as running there, and is not judged" in told) == (0, True), told
    described = write(tmp_path, CLUSTER + "---\n" + json.dumps(pod), "described.yaml")
    found = run.invoke(app, ["simulate", "--cluster", described])
    assert (found.exit_code, found.stderr) == (0, "")


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_a_printed_pod_without_a_node_is_still_to_be_placed(tmp_path: Path, phase: str) -> None:
    """As a dry run prints one that is new: nobody but a kubelet writes a status."""
    printed = {**changed(POD, "metadata.uid", EXPORTED), "status": {"phase": phase}}
    assert simulate(tmp_path, json.dumps(printed))[0] == 0
    large = changed(printed, "spec.containers.0.resources", {"requests": {"cpu": 1_000}})
    assert simulate(tmp_path, json.dumps(large))[0] == 3
    code, told = simulate(tmp_path, json.dumps(changed(printed, "spec.containers.0.image", "$IMAGE")))
    assert (code, "spec.containers[0].image" in told) == (2, True), told


@pytest.mark.parametrize("body", [POD, DEPLOYMENT, NAMESPACE], ids=lambda body: body["kind"])
def test_a_version_that_a_cluster_may_not_have_is_told(tmp_path: Path, body: Json) -> None:
    printed = changed(body, "metadata.uid", EXPORTED)
    said = "metadata.resourceVersion: an API server refuses the object if it has changed since, or is not there"
    assert said not in simulate(tmp_path, json.dumps(printed))[1]
    code, told = simulate(tmp_path, json.dumps(changed(printed, "metadata.resourceVersion", "7")))
    assert (code, said in told) == (0, True), told


@pytest.mark.parametrize("kind", ["Node", "Cluster"])
def test_only_files_of_the_cluster_say_which_nodes_there_are(tmp_path: Path, kind: str) -> None:
    large = changed(POD, "spec.containers.0.resources", {"requests": {"cpu": 1_000}})
    node: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}}
    node["status"] = {"allocatable": {"cpu": 2_000, "pods": 10}}
    cluster = {"apiVersion": "gputile.io/v1alpha1", "kind": "Cluster", "nodes": [{"name": "b", "cpu": 2_000}]}
    text = "\n".join(map(json.dumps, (large, node if kind == "Node" else cluster)))
    code, told = simulate(tmp_path, text)
    assert code == (3 if kind == "Node" else 2)
    assert ("it makes no room" if kind == "Node" else "name its file by --cluster") in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{apiVersion: v2, kind: List, items: []}", 'no matches for kind "List" in version "v2"'),
        ("{apiVersion: x.y/v1, kind: List, items: []}", 'no matches for kind "List" in version "x.y/v1"'),
        ("{apiVersion: v1, kind: DeploymentList, items: []}", 'no matches for kind "DeploymentList" in version "v1"'),
        (
            "{apiVersion: v1, kind: ComponentStatus, metadata: {name: x}}",
            "no API server creates an object of this kind",
        ),
        (
            "{apiVersion: v1, kind: Binding, metadata: {name: x}, target: {kind: Node, name: n}}",
            "no API server keeps an object of this kind",
        ),
        (
            "{apiVersion: authentication.k8s.io/v1, kind: TokenReview, metadata: {name: x}, spec: {token: t}}",
            "no API server keeps an object of this kind",
        ),
    ],
)
def test_lists_and_kinds_that_are_none(tmp_path: Path, text: str, said: str) -> None:
    code, told = simulate(tmp_path, text)
    assert (code, said in told) == (2, True), told
    for right in ("{apiVersion: v1, kind: List", "{apiVersion: apps/v1, kind: DeploymentList"):
        assert simulate(tmp_path, f"{right}, items: [{json.dumps(DEPLOYMENT)}]}}")[0] == 0


def test_the_nodes_of_a_storage_class_are_told(tmp_path: Path) -> None:
    body: Json = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "s"},
        "provisioner": "p",
    }
    assert "allowedTopologies" not in simulate(tmp_path, json.dumps(body))[1]
    body["allowedTopologies"] = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]
    assert "in its allowedTopologies is not judged" in simulate(tmp_path, json.dumps(body))[1]


def test_the_nodes_of_a_volume_are_told(tmp_path: Path) -> None:
    field = {"key": "zone", "operator": "In", "values": ["a"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [field]}]}}
    volume: Json = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}}
    volume["spec"] = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/d"}}
    assert "nodeAffinity is not judged" not in simulate(tmp_path, json.dumps(volume))[1]
    assert (
        "nodeAffinity is not judged"
        in simulate(tmp_path, json.dumps(changed(volume, "spec.nodeAffinity", affinity)))[1]
    )


def test_a_job_as_an_api_server_prints_it_is_judged(tmp_path: Path) -> None:
    """It has labels and a selector by its UID, which no new Job may have."""
    named = changed(JOB, "metadata.uid", EXPORTED)
    labels = {"app": "x", "controller-uid": EXPORTED, "batch.kubernetes.io/controller-uid": EXPORTED}
    printed = changed(named, "spec.template.metadata.labels", labels)
    printed = changed(printed, "spec.selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": EXPORTED}})
    assert simulate(tmp_path, json.dumps({**printed, "status": {}}))[0] == 0
    code, told = simulate(tmp_path, json.dumps(changed(printed, "spec.template.spec.restartPolicy", "Always")))
    assert (code, "spec.template.spec.restartPolicy" in told) == (2, True), told
    assert simulate(tmp_path, json.dumps(changed(printed, "metadata.uid", "other")))[0] == 2
