"""Pods that an API server takes and no kubelet ever starts are refused."""

import json
from pathlib import Path

import pytest

from gputile.tools.simulator.cluster.workload_pods import Expansion, expand
from gputile.tools.simulator.documents.manifests import ManifestError
from gputile.tools.simulator.rules.pods.startable import broken_image
from tests.manifests import DEPLOYMENT, POD, Json, changed
from tests.never_started import CONFIG_MAP, EMPTY, NEVER_STARTED, STARTED, Odd
from tests.unit.tools.simulator.builders import load_text

pytestmark = pytest.mark.requirement("B4")

CONTAINER = "spec.containers.0"
SHA = "a" * 64


def expanded(tmp_path: Path, body: Json) -> Expansion:
    return expand(load_text(tmp_path, json.dumps(body)).manifests, [])


@pytest.mark.parametrize(
    "image",
    [
        *("i", "a:1", "library/a", "registry.example.com/a/b:v1.2-x_3", "localhost:5000/a__b/c-d.e@sha256:" + SHA),
        *("a@sha256:" + SHA, "a:1@sha512:" + SHA * 2, "Registry.Example.com/a", "[::1]:5000/a", "UPPER/a", SHA[:63]),
        *("localhost/a", "host:80/a:b", "gcr.io/p/a---b"),
    ],
)
def test_names_of_images(image: str) -> None:
    assert broken_image(image) is None


@pytest.mark.parametrize(
    "image",
    [
        *("Registry.example.com/Team/Model:1", "https://registry.example.com/a:1", "a:1:2", "$IMAGE", "a b", "Model"),
        *("{{ .Values.image }}", "a@sha256:abc", "a:", "a@", "/a", "a/", "a//b", "a:-1", SHA, "a_", "-a.b/c"),
        *("a@sha256:" + SHA.upper(), "a@md5:" + SHA, "a:" + "1" * 129, "a" * 256, "é", "host:x/a"),
    ],
)
def test_what_is_no_name_of_an_image(tmp_path: Path, image: str) -> None:
    assert broken_image(image) is not None
    for body, path in ((POD, CONTAINER), (DEPLOYMENT, "spec.template.spec.containers.0")):
        with pytest.raises(ManifestError, match=r"containers\[0\]\.image: Invalid value: .*no kubelet can pull it"):
            expanded(tmp_path, changed(body, f"{path}.image", image))

    volume = {"name": "v", "image": {"reference": image}}
    with pytest.raises(ManifestError, match=r"volumes\[0\]\.image\.reference: Invalid value: .*no kubelet can pull it"):
        expanded(tmp_path, changed(POD, "spec.volumes", [volume]))


ROOT = "runAsNonRoot: Invalid value: true: it runs as user 0"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.securityContext", {"runAsNonRoot": True, "runAsUser": 0}, ROOT),
        (f"{CONTAINER}.securityContext", {"runAsNonRoot": True, "runAsUser": 0}, ROOT),
        ("spec.volumes", [{"name": "v", "emptyDir": {"medium": "HugePages"}}], "no container asks for hugepages-SIZE"),
        (
            "spec.volumes",
            [{"name": "v", "emptyDir": {"medium": "HugePages-2Mi"}}],
            "no container asks for hugepages-2Mi",
        ),
    ],
)
def test_containers_that_never_start(tmp_path: Path, path: str, value: object, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        expanded(tmp_path, changed(POD, path, value))


def test_what_a_container_says_counts_before_what_its_pod_says(tmp_path: Path) -> None:
    whole = changed(POD, "spec.securityContext", {"runAsNonRoot": True, "runAsUser": 0})
    expanded(tmp_path, changed(whole, f"{CONTAINER}.securityContext", {"runAsUser": 1}))
    expanded(tmp_path, changed(whole, f"{CONTAINER}.securityContext", {"runAsNonRoot": False}))
    with pytest.raises(ManifestError, match=ROOT):
        expanded(tmp_path, changed(whole, "spec.securityContext.runAsUser", 0))


@pytest.mark.parametrize(
    ("text", "more", "right"),
    [
        ("$(A)", {"env": [{"name": "A", "value": "a"}]}, True),
        ("$(B)", {"env": [{"name": "A", "value": "a"}]}, False),
        ("$(B)", {"envFrom": [{"configMapRef": {"name": "c"}}]}, True),
        ("$$(B)", {}, True),
        ("$(WEB_SERVICE_HOST)", {}, True),
        ("a/b", {}, True),
    ],
)
def test_variables_in_paths(tmp_path: Path, text: str, more: Json, right: bool) -> None:
    mounts = [{"name": "v", "mountPath": "/v", "subPathExpr": text}]
    body = changed(changed(POD, "spec.volumes", [{"name": "v", "emptyDir": {}}]), f"{CONTAINER}.volumeMounts", mounts)
    body["spec"]["containers"][0] |= more
    if right:
        expanded(tmp_path, body)
        return
    with pytest.raises(ManifestError, match=r"volumeMounts\[0\]\.subPathExpr: .* has no variable"):
        expanded(tmp_path, body)


@pytest.mark.parametrize("name", ["c", "first", "nosuch"])
@pytest.mark.parametrize("place", ["env", "downwardAPI", "projected"])
def test_references_to_resources_of_other_containers(tmp_path: Path, place: str, name: str) -> None:
    reference: Json = {"resourceFieldRef": {"containerName": name, "resource": "limits.cpu"}}
    files = {"downwardAPI": {"items": [{"path": "x", **reference}]}}
    body = changed(POD, "spec.initContainers", [{"name": "first", "image": "i"}])
    if place == "env":
        body = changed(body, f"{CONTAINER}.env", [{"name": "A", "valueFrom": reference}])
    else:
        volume = files if place == "downwardAPI" else {"projected": {"sources": [files]}}
        body = changed(body, "spec.volumes", [{"name": "v", **volume}])
    if name != "nosuch":
        expanded(tmp_path, body)
        return
    with pytest.raises(ManifestError, match=r'containerName: Invalid value: "nosuch": the pod has no such container'):
        expanded(tmp_path, body)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (f"{CONTAINER}.resources.limits.memory", "100m", "100m is less than 6Mi"),
        (f"{CONTAINER}.resources.limits.memory", "5Mi", "5Mi is less than 6Mi"),
        (f"{CONTAINER}.resources.limits.memory", "6Mi", ""),
        ("spec.securityContext.sysctls", [{"name": "vm.max_map_count", "value": "1"}], "no kubelet sets it"),
        ("spec.securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}], "--allowed-unsafe-sysctls"),
        ("spec.securityContext.sysctls", [{"name": "net/ipv4/tcp_syncookies", "value": "1"}], ""),
        (f"{CONTAINER}.resources.limits.memory", "100Mi", ""),
    ],
)
def test_what_most_kubelets_do_not_start_is_told(tmp_path: Path, path: str, value: object, said: str) -> None:
    notes = [note.text for note in expanded(tmp_path, changed(POD, path, value)).notes]
    assert ([each for each in notes if said in each] != []) == bool(said) or not said
    assert said or notes == []


@pytest.mark.parametrize("length", [10, 40])
def test_a_name_of_a_host_that_is_too_long_is_told(tmp_path: Path, length: int) -> None:
    body = changed(changed(POD, "spec.setHostnameAsFQDN", True), "spec.subdomain", "s" * length)
    notes = " ".join(note.text for note in expanded(tmp_path, changed(body, "metadata.name", "n" * length)).notes)
    assert ("has more than 64 characters" in notes) == (length == 40)


def odd_pod(odd: Odd) -> Json:
    return changed(
        changed(POD, "spec", {**POD["spec"], **odd.pod}), CONTAINER, {**POD["spec"]["containers"][0], **odd.container}
    )


def beside_a_config_map(tmp_path: Path, body: Json) -> Expansion:
    return expanded(tmp_path, {"apiVersion": "v1", "kind": "List", "items": [CONFIG_MAP, body]})


@pytest.mark.parametrize("odd", NEVER_STARTED, ids=lambda odd: odd.name)
def test_what_no_runtime_starts(tmp_path: Path, odd: Odd) -> None:
    with pytest.raises(ManifestError) as refused:
        beside_a_config_map(tmp_path, odd_pod(odd))
    (said,) = str(refused.value).split("\n")
    assert odd.said in said
    assert "no kubelet" in said


@pytest.mark.parametrize("odd", STARTED, ids=lambda odd: odd.name)
def test_what_a_runtime_starts(tmp_path: Path, odd: Odd) -> None:
    assert len(beside_a_config_map(tmp_path, odd_pod(odd)).pods) == 1


@pytest.mark.parametrize(
    ("container", "pod"),
    [
        ({"workingDir": "C:\\app"}, {}),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/dev"}]},
            {"volumes": [{"name": "v", "hostPath": {"path": "/data"}}]},
        ),
        ({"volumeMounts": [{"name": "v", "mountPath": "/proc/cpuinfo", "subPath": "cpuinfo"}]}, EMPTY),
        ({"command": [""]}, {"os": {"name": "windows"}}),
        (
            {"ports": [{"name": "web", "containerPort": 1}], "startupProbe": {"httpGet": {"port": "web"}}},
            {},
        ),
        ({"livenessProbe": {"httpGet": {"port": "web"}}}, {}),
    ],
    ids=["windows", "host", "file", "os", "port", "liveness"],
)
def test_what_other_nodes_start(tmp_path: Path, container: Json, pod: Json) -> None:
    assert len(expanded(tmp_path, odd_pod(Odd("", container, pod))).pods) == 1


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe"])
def test_a_probe_of_a_port_that_is_not_there_never_succeeds(tmp_path: Path, probe: str) -> None:
    with pytest.raises(ManifestError, match=rf"{probe}\.tcpSocket\.port: Invalid value: \"web\": .* never ready"):
        expanded(tmp_path, odd_pod(Odd("", {probe: {"tcpSocket": {"port": "web"}}}, {})))


@pytest.mark.parametrize(
    ("container", "where"),
    [
        ({"args": ["a", "é" * 65_536]}, "args[1]"),
        ({"env": [{"name": "A", "value": "x" * 131_070}]}, "env[0].value"),
    ],
    ids=["argument", "variable"],
)
def test_a_note_tells_of_texts_that_most_kernels_do_not_take(tmp_path: Path, container: Json, where: str) -> None:
    told = map(str, expanded(tmp_path, odd_pod(Odd("", container, {}))).notes)
    assert [each for each in told if f"spec.containers[0].{where}: has more than 128 KiB" in each]
