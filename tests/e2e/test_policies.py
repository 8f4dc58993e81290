"""The rules about paths in CEL, evaluated by the real API server, and those in Python: one verdict on every path."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gputile.core.admission import isolation_bypass
from gputile.core.admission.isolation_bypass import (
    DAEMON_PATHS,
    GPU_PATHS,
    LIMIT_PATHS,
    NODE_PATHS,
    TOOLKIT_PATHS,
    access_refusals,
)
from gputile.core.admission.pod_view import PodView
from tests.localcluster.admission import MANIFESTS, Json, pod, verdict
from tests.localcluster.controlplane import ControlPlane

MEM = "aliyun.com/gpu-mem"
RUNS = 60

PROTECTED = (*GPU_PATHS, *NODE_PATHS, *LIMIT_PATHS, *DAEMON_PATHS, *TOOLKIT_PATHS)
OTHERS = {"", ".", "..", "x", "nvidia0", "var", "self", "thread-self", "task", "1", "root", "cwd"}
PARTS = st.sampled_from(sorted({part for path in PROTECTED for part in path.split("/") if part} | OTHERS))
# What is protected, with its parents and children, in every spelling, and what only looks like it.
PATHS = st.one_of(
    st.builds(
        lambda path, cut, before, after: before + "/".join(path.split("/")[: cut or None]) + after,
        st.sampled_from(PROTECTED),
        st.integers(-2, 0),
        st.sampled_from(["", "/", "/./", "//", "/x/..", "/var", "/x", "../"]),
        st.sampled_from(["", "/", "/.", "//x", "/..", "x", "0", "/x/.."]),
    ),
    st.builds(
        "{}/proc/{}/{}{}".format,
        st.sampled_from(["", "/", "//.", "/x"]),
        st.sampled_from(["1", "self", "thread-self", "selfish", "net", "/./7", "self/task/7", "\u0661"]),
        st.sampled_from(["root", "cwd", "roots", "fd/3", ""]),
        st.sampled_from(["", "/etc/gputile", "/dev/nvidia0", "/run/nvidia-container-devices/all"]),
    ),
    st.lists(PARTS, min_size=1, max_size=5).map("/".join),
    st.lists(PARTS, min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts)),
).filter(bool)


@pytest.fixture(scope="module")
def policies(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    manifest = str(MANIFESTS / "policies.yaml")
    control_plane.kubectl("apply", "-f", manifest)
    probe = pod("in-force", container={"env": [{"name": "GPUTILE_LIMITS", "value": "x"}]})
    control_plane.wait(lambda: "gputile" in verdict(control_plane.api, "default", probe), "the policies")
    yield control_plane
    control_plane.kubectl("delete", "-f", manifest)
    control_plane.wait(lambda: not verdict(control_plane.api, "default", probe), "the policies to be gone")


def with_paths(
    gpu: bool, init: bool, hosts: list[str], mounts: list[str], devices: list[str], message: str = ""
) -> Json:
    """Return a pod with these paths; a name says which is which."""
    volumes: list[Json] = [{"name": f"h{i}", "hostPath": {"path": path}} for i, path in enumerate(hosts)]
    volumes += [{"name": f"m{i}", "emptyDir": {}} for i in range(len(mounts))]
    volumes += [{"name": f"d{i}", "persistentVolumeClaim": {"claimName": f"d{i}"}} for i in range(len(devices))]
    fields: Json = {
        "volumeMounts": [{"name": f"m{i}", "mountPath": path} for i, path in enumerate(mounts)],
        "volumeDevices": [{"name": f"d{i}", "devicePath": path} for i, path in enumerate(devices)],
    }
    if message:
        fields["terminationMessagePath"] = message
    limits: Any = {MEM: 1} if gpu else None
    if not init:
        return pod("p", limits, container=fields, volumes=volumes)
    first = {"name": "first", "image": "registry.example.com/x:1", **fields}
    return pod("p", limits, initContainers=[first], volumes=volumes)


def by_python(body: Json) -> set[str]:
    """Return the fields that the rules in Python refuse."""
    gpu = "resources" in body["spec"]["containers"][0]
    refusals = access_refusals(msgspec.convert(body, PodView), gpu=gpu)
    return {refusal.text.split(": ")[0] for refusal in refusals}


def by_cel(said: str, body: Json) -> set[str]:
    """Return the fields that the API server's answer names; all else that it may find wrong is no verdict."""
    assert not said or "gputile: " in said, said
    container = body["spec"].get("initContainers", body["spec"]["containers"])[0]
    where = f"spec.{'initContainers' if 'initContainers' in body['spec'] else 'containers'}[{container['name']}]"
    fields = [f"spec.volumes[{volume['name']}].hostPath.path" for volume in body["spec"]["volumes"]]
    fields += [f"{where}.volumeMounts[{mount['name']}].mountPath" for mount in container["volumeMounts"]]
    fields += [f"{where}.volumeDevices[{device['name']}].devicePath" for device in container["volumeDevices"]]
    fields.append(f"{where}.terminationMessagePath")
    return {field for field in fields if field in said}


@pytest.mark.requirement("B2")
@settings(max_examples=RUNS, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@example(gpu=True, init=False, hosts=["/var/run/runc"], mounts=["/tmp/../etc/gputile"], devices=["/"], message="/etc")
@example(gpu=True, init=True, hosts=[], mounts=["/etc"], devices=[], message="/etc/ld.so.preload")
@example(gpu=False, init=False, hosts=[], mounts=[], devices=[], message="/run/nvidia-container-devices/0")
@given(
    gpu=st.booleans(),
    init=st.booleans(),
    # the API server itself refuses ".." in these two, before it evaluates policies
    hosts=st.lists(PATHS.filter(lambda path: ".." not in path), max_size=12),
    mounts=st.lists(PATHS, max_size=12, unique=True),
    devices=st.lists(PATHS.filter(lambda path: ".." not in path), max_size=4, unique=True),
    message=st.one_of(st.just(""), PATHS),
)
def test_cel_and_python_refuse_the_same_paths(
    policies: ControlPlane,
    gpu: bool,
    init: bool,
    hosts: list[str],
    mounts: list[str],
    devices: list[str],
    message: str,
) -> None:
    """Each line holds alone, so a path that passes one of the two has passed."""
    devices = [path for path in devices if path not in mounts]
    body = with_paths(gpu, init, hosts, mounts, devices, message)
    assert by_cel(verdict(policies.api, "default", body), body) == by_python(body)


@pytest.mark.requirement("B2", "B8")
def test_limits_are_protected_in_pods_with_claims_too(policies: ControlPlane) -> None:
    body = with_paths(False, False, [], ["/etc/gputile"], [])
    assert not verdict(policies.api, "default", body)
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    assert "containers[main].volumeMounts[m0].mountPath" in verdict(policies.api, "default", body)


CAPABILITIES = st.one_of(
    st.sampled_from(
        [
            *isolation_bypass.CAPABILITIES,
            "NET_ADMIN",
            "\u017fYS_ADMIN",
            "SYS_ADM\u0131N",
            "\u212aILL",
            "",
            "SYS_CAP_ADMIN",
            "CAP_ALL",
        ]
    ),
    st.text(max_size=6),
)


@settings(max_examples=RUNS, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@example(gpu=True, names=["\u017fys_adm\u0131n"])
@example(gpu=True, names=["SYS_CAP_ADMIN", "CAP_CAP_ALL", "CAP_"])
@given(gpu=st.booleans(), names=st.lists(st.tuples(st.sampled_from(["", "CAP_", "cap_"]), CAPABILITIES).map("".join)))
def test_cel_and_python_refuse_the_same_capabilities(policies: ControlPlane, gpu: bool, names: list[str]) -> None:
    body = pod("p", {MEM: 1} if gpu else None, container={"securityContext": {"capabilities": {"add": names}}})
    said = verdict(policies.api, "default", body)
    assert ("[privileged]" in said) == bool(by_python(body)), said
