"""Every rule, broken and kept; a refusal names the field, the rule and the remedy."""

from dataclasses import replace
from typing import Any

import pytest

from gputile.api.config.v1alpha1 import GpuTime
from gputile.core.admission.review import MOST_FOUND, MOST_SHOWN, UnreadableReview, message, mutate, validate
from gputile.core.refusal import AdmissionRule, Refusal

from .builders import AGENT, POLICY, Json, broken, broken_change, mutated, pod, request

MEM, CORE, WHOLE, TOPOLOGY = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "nvidia.com/gpu", "aliyun.com/gpu"
GPU: Json = {WHOLE: "1"}
MIG = "nvidia.com/mig-1g.10gb"
COUNT = {"labels": {"aliyun.com/gpu-count": "2"}}
ALLOCATION = "gputile.io/allocation"
DEVICE = ["device-annotation"]
UNSAFE = replace(POLICY, unsafe_access=True)


def env(name: str, **rest: Any) -> Json:
    return {"env": [{"name": name, **rest}]}


def host(path: str) -> list[Json]:
    return [{"name": "v", "hostPath": {"path": path}}]


def mount(path: str) -> Json:
    return {"volumeMounts": [{"name": "v", "mountPath": path}]}


def limited(memory: str, core: str, percent: int) -> Json:
    return {"resources": {"limits": {memory: "1", core: percent}}}


def block(path: str) -> Json:
    return {"volumeDevices": [{"name": "v", "devicePath": path}]}


def secure(**context: Any) -> Json:
    return {"securityContext": context}


PATHS_TO_GPUS = [
    "/dev/nvidia0",
    "/dev//./nvidia0",
    "/dev/nvidiactl",
    "/var/lib/gputile/allocations",
    "/var/run/gputile",
    "/tmp/nvidia-mps",
    "/var/run/nvidia/mps/x",
    "/proc/1/root/dev/nvidia0",
    "/proc//thread-self/root/var/lib/gputile",
    "/proc/self/task/7/cwd",
    "/x/../dev/nvidia0",
]
"""No pod mounts them."""
PATHS_TO_THE_NODE = [
    "/etc/default/kubelet",
    "/etc/sysconfig/crio",
    "/etc/dbus-1/system.d",
    "/usr/lib/systemd/system",
    "/usr/share/containers/oci/hooks.d",
    "/var/lib/crio",
    "/",
    "/dev/",
    "/dev/char/195:0",
    "/proc/1/root",
    "/opt",
    "/var/lib/kubelet/device-plugins",
    "/var/run/docker.sock",
    "/var/run//nri",
    "/sys/fs/cgroup",
    "/etc/kubernetes/manifests",
]
"""No pod with GPUs mounts them: they lead to devices, daemons or what starts containers."""
PLACES_OF_LIMITS = [
    "/etc/gputile/allocation",
    "/etc/ld.so.preload",
    "/etc/ld-nix.so.preload",
    "/tmp/../etc/gputile",
    "/x/../etc/ld.so.preload",
    "../../etc/./gputile/",
    "/proc/self/root/etc/gputile/allocation",
    "proc//1/./root/etc/ld.so.preload",
    "/proc/thread-self/root/etc",
    "etc//gputile",
    "/etc",
    "/.",
    "/tmp/nvidia-mps/",
]
"""Nothing is mounted there in a container of a pod with GPUs; also by odd spellings, and by links."""
DEVICE_KEYS = ["cdi.k8s.io/x", "devices.nri.io", "io.kubernetes.cri-o.Devices", "devices.gke.io/container.c"]
"""Annotations by which runtimes and their plugins add devices."""

REFUSED = {
    # G2, M8, M10: what the parser refuses
    "fraction": (pod({MEM: "0.5"}), ["gpu-amount"]),
    "request alone": (pod(container={"resources": {"requests": {WHOLE: "1"}}}), ["gpu-amount"]),
    "two kinds": (pod({MEM: "1", WHOLE: "1"}), ["gpu-amount"]),
    "both names": (pod({WHOLE: "1", "alpha.kubernetes.io/nvidia-gpu": "1"}), ["gpu-amount"]),
    "core alone": (pod({CORE: "50"}), ["gpu-amount"]),
    "more core than two GPUs have": (pod({MEM: "2", CORE: "210"}, meta=COUNT), ["gpu-amount"]),
    "more core in two containers": (
        pod(
            {MEM: "1", CORE: "60"}, initContainers=[{"name": "i", "restartPolicy": "Always", **limited(MEM, CORE, 60)}]
        ),
        ["gpu-amount"],
    ),
    "7 on 2 GPUs": (pod({MEM: "7"}, meta=COUNT), ["gpu-amount"]),
    # B2: forged
    "allocation": (pod(GPU, meta={"annotations": {ALLOCATION: "{}"}}), ["forged-allocation"]),
    "no gpu, allocation": (pod(meta={"annotations": {ALLOCATION: "{}"}}), ["forged-allocation"]),
    "gpushare": (pod(GPU, meta={"annotations": {"ALIYUN_COM_GPU_MEM_IDX": "0"}}), ["forged-allocation"]),
    "ack": (pod(GPU, meta={"annotations": {"scheduler.framework.gpushare.allocation": "{}"}}), ["forged-allocation"]),
    # B2: escapes
    "all devices": (pod(GPU, container=env("NVIDIA_VISIBLE_DEVICES", value="all")), ["environment"]),
    "no gpu, all devices": (pod(container=env("NVIDIA_VISIBLE_DEVICES", value="all")), ["environment"]),
    "devices from a map": (
        pod(container=env("NVIDIA_VISIBLE_DEVICES", valueFrom={"configMapKeyRef": {"name": "m", "key": "k"}})),
        ["environment"],
    ),
    "devices of an init container": (
        pod(GPU, initContainers=[{"name": "i", **env("NVIDIA_VISIBLE_DEVICES", value="0")}]),
        ["environment"],
    ),
    "mps pipe": (pod(GPU, container=env("CUDA_MPS_PIPE_DIRECTORY", value="/x")), ["environment"]),
    "mps limit": (pod(GPU, container=env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", value="0=80G")), ["environment"]),
    "limits": (pod(GPU, container=env("GPUTILE_LIMITS", value="none")), ["environment"]),
    "privileged": (pod(GPU, container=secure(privileged=True)), ["privileged"]),
    "sys_admin": (pod(GPU, container=secure(capabilities={"add": ["SYS_ADMIN"]})), ["privileged"]),
    "open by handle": (pod(GPU, container=secure(capabilities={"add": ["DAC_READ_SEARCH"]})), ["privileged"]),
    "cap_sys_admin": (pod(GPU, container=secure(capabilities={"add": ["cap_sys_admin"]})), ["privileged"]),
    "a name that runtimes make a capability": (
        pod(GPU, container=secure(capabilities={"add": ["\u017fys_adm\u0131n"]})),
        ["privileged"],
    ),
    "host pid": (pod(GPU, hostPID=True), ["host-namespace"]),
    "host ipc": (pod(GPU, hostIPC=True), ["host-namespace"]),
    "the kubelet's own file": (pod(GPU, container={"terminationMessagePath": "/etc//ld.so.preload"}), ["mount"]),
    "a block device": (pod(GPU, container=block("/etc/ld.so.preload")), ["mount"]),
    "limits of an init container": (pod(GPU, initContainers=[{"name": "i", **mount("/etc")}]), ["mount"]),
    "up to wished devices": (pod(container=mount("/var/x/../run/nvidia-container-devices/all")), ["mount"]),
    "wished devices": (pod(container=mount("/var/run/nvidia-container-devices/all")), ["mount"]),
    "mig, all devices": (pod({MIG: 1}, container=env("NVIDIA_VISIBLE_DEVICES", value="all")), ["environment"]),
    "mig, privileged": (pod({MIG: 1}, container=secure(privileged=True)), ["privileged"]),
    "past the scheduler": (pod(GPU, nodeName="n"), ["node-name"]),
    **{path: (pod(volumes=host(path)), ["host-path"]) for path in PATHS_TO_GPUS},
    **{path: (pod(GPU, volumes=host(path)), ["host-path"]) for path in PATHS_TO_THE_NODE},
    **{f"mount {path}": (pod(GPU, container=mount(path)), ["mount"]) for path in PLACES_OF_LIMITS},
    **{key: (pod(meta={"annotations": {key: "- path: /dev/nvidia0"}}), DEVICE) for key in DEVICE_KEYS},
}
LET_THROUGH = {
    "plain": pod(),
    "whole": pod(GPU),
    "shared": pod({MEM: "16"}),
    "shared on 2 GPUs": pod({MEM: "8", CORE: "10"}, meta=COUNT),
    "core": pod({MEM: "1", CORE: "5"}),
    "all of two GPUs": pod({MEM: "2", CORE: "200"}, meta=COUNT),
    "all of a GPU, twice in turn": pod(
        {MEM: "1", CORE: "100"}, initContainers=[{"name": "i", **limited(MEM, CORE, 100)}]
    ),
    "no core at all": pod({CORE: "0"}),
    "k": pod({MEM: "1k"}),
    "no GPUs shown": pod(GPU, container=env("NVIDIA_VISIBLE_DEVICES", value="none")),
    "other nvidia": pod(GPU, container=env("NVIDIA_DRIVER_CAPABILITIES", value="compute,utility")),
    "fewer of its GPUs": pod(GPU, container=env("CUDA_VISIBLE_DEVICES", value="0")),
    "plain privileged": pod(container=secure(privileged=True), hostPID=True, hostIPC=True),
    "plain root": pod(volumes=host("/")),
    "cuda libraries": pod(GPU, volumes=host("/usr/lib/nvidia-375"), container=mount("/usr/lib/nvidia")),
    "not the agent's": pod(volumes=host("/var/lib/gputiles")),
    "dropped": pod(GPU, container=secure(privileged=False, capabilities={"drop": ["ALL"], "add": ["NET_ADMIN"]})),
    "plain, by hand": pod(nodeName="n"),
    "below etc": pod(GPU, container=mount("/etc/gputiles")),
    "tmp and run": pod(
        GPU,
        container={"volumeMounts": [{"name": "v", "mountPath": "/tmp"}, {"name": "w", "mountPath": "/var/run"}]},
    ),
    "plain, up": pod(container=mount("/x/../etc/gputile")),
    "plain runtime": pod(volumes=host("/run/containerd")),
    "data": pod(GPU, volumes=host("/mnt/data")),
    "a file of proc": pod(GPU, container=mount("/proc/meminfo")),
    "plain, a namespace of a process": pod(volumes=host("/proc/1/ns/net")),
    "plain, by a process's link": pod(container=mount("/proc/self/root/etc/gputile")),
    "shared memory": pod(GPU, volumes=host("/dev/shm")),
    "applications": pod(GPU, volumes=host("/opt/data")),
    "a name that begins alike": pod(GPU, volumes=host("/var/snapshots")),
    "plain nri": pod(volumes=host("/run/nri")),
}


@pytest.mark.requirement("G2", "M8", "M10", "B2")
@pytest.mark.parametrize(("body", "rules"), REFUSED.values(), ids=REFUSED.keys())
def test_what_breaks_a_rule_is_refused(body: Json, rules: list[str]) -> None:
    """By both webhooks, with the field and the remedy."""
    assert broken(body) == rules
    refusals = validate(request(body), POLICY).refusals
    assert [str(refusal.rule) for refusal in refusals] == rules
    for refusal in refusals:
        assert refusal.text.startswith(("spec.", "metadata.", "the pod asks for", "container main: "))
        assert ": " in refusal.text
    assert not mutate(request(body), POLICY).operations


@pytest.mark.parametrize("body", LET_THROUGH.values(), ids=LET_THROUGH.keys())
def test_what_breaks_none_is_let_through(body: Json) -> None:
    assert broken(body) == []
    assert validate(request(mutated(body)), POLICY).refusals == ()


@pytest.mark.requirement("B2")
@pytest.mark.parametrize(("body", "rules"), REFUSED.values(), ids=REFUSED.keys())
def test_the_owner_s_label_opens_a_namespace_but_nobody_may_forge_there(body: Json, rules: list[str]) -> None:
    """The policy is about access; amounts and allocations are never a matter of policy."""
    always = [rule for rule in rules if rule in ("gpu-amount", "forged-allocation")]
    assert broken(body, UNSAFE) == always


def test_all_refusals_are_told_at_once() -> None:
    body = pod(
        {MEM: "0.5"},
        container={**env("NVIDIA_VISIBLE_DEVICES", value="all"), **secure(privileged=True)},
        meta={"annotations": {ALLOCATION: "{}"}},
        hostIPC=True,
        initContainers=[{"name": "i", "resources": {"limits": {WHOLE: "x", MEM: "y", CORE: "7"}}}],
    )
    assert sorted(broken(body)) == [
        "environment",
        "forged-allocation",
        "gpu-amount",
        "host-namespace",
        "privileged",
    ]
    text = message(mutate(request(body), POLICY).refusals)
    assert text.startswith("gputile: ")
    for part in ("initContainers[i]", "spec.hostIPC", ALLOCATION, "[environment]", "[gpu-amount]"):
        assert part in text


def test_a_message_is_of_bounded_length_and_printable() -> None:
    many = [Refusal(AdmissionRule.AMOUNT, "x" * 100_000 + "\n")] * 10_000
    text = message(many)
    assert len(text) < 10_000
    assert text.count("[gpu-amount]") == MOST_SHOWN
    assert text.endswith("; and more")
    assert message([Refusal(AdmissionRule.AMOUNT, "a\nb\x1b[31m")]) == "gputile: a?b?[31m [gpu-amount]"


def test_thousands_of_mistakes_take_no_longer_than_some() -> None:
    """Nobody starves the webhook with one pod."""
    body = pod(GPU, container={"env": [{"name": f"GPUTILE_{i}", "value": "x"} for i in range(5_000)]}, hostIPC=True)
    found = mutate(request(body), POLICY).refusals
    assert len(found) == MOST_FOUND
    assert found[0].rule is AdmissionRule.HOST_NAMESPACE, (
        "what there is one of is found before what there are thousands of"
    )


@pytest.mark.requirement("B2")
@pytest.mark.parametrize("sub", ["", "status", "ephemeralcontainers", "resize"])
@pytest.mark.parametrize("key", [ALLOCATION, "ALIYUN_COM_GPU_MEM_ASSIGNED", "gputile.io/memory-unit-mib"])
def test_nobody_changes_an_allocation(key: str, sub: str) -> None:
    """Adding, altering and removing, by whatever subresource; gputile's own accounts may."""
    before, after = pod(GPU, meta={"annotations": {key: "1"}}), pod(GPU, meta={"annotations": {key: "2"}})
    for new, old in ((after, before), (pod(GPU), before), (after, pod(GPU))):
        assert broken_change(new, old, sub=sub) == ["forged-allocation"]
        assert broken_change(new, old, sub=sub, user=AGENT) == []
    assert broken_change(before, before, sub=sub) == []


@pytest.mark.requirement("M10")
def test_nobody_changes_the_number_of_gpus() -> None:
    assert broken_change(pod({MEM: "2"}, meta=COUNT), pod({MEM: "2"})) == ["gpu-count-changed"]
    assert broken_change(pod({MEM: "2"}), pod({MEM: "2"}, meta=COUNT)) == ["gpu-count-changed"]


CONTROLLER = "system:serviceaccount:gputile:gputile-controller"
GANG = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
GROUP = {"scheduling.x-k8s.io/pod-group": "g"}


def member(labels: Json, *gates: str) -> Json:
    return pod({MEM: "1"}, meta={"labels": labels}, schedulingGates=[{"name": gate} for gate in gates])


@pytest.mark.requirement("M13")
@pytest.mark.parametrize("labels", [GANG, GROUP], ids=["labels", "PodGroup"])
def test_nobody_lets_a_pod_go_that_waits_for_its_gang(labels: Json) -> None:
    """Neither by its gate nor by other labels; gputile's accounts may, and others may remove their own gates."""
    waits, gone = member(labels, "gputile.io/gang", "other"), member(labels, "other")
    policy = replace(POLICY, gangs=True)
    assert broken_change(gone, waits, policy) == ["gang-gate"]
    assert broken_change(gone, waits, policy, user=CONTROLLER) == []
    assert broken_change(member(labels, "gputile.io/gang"), waits, policy) == []
    assert broken_change(waits, waits, policy) == []
    assert broken_change(member({**labels, "mine": "x"}, "gputile.io/gang", "other"), waits, policy) == []
    for label in labels:
        fewer = {key: value for key, value in labels.items() if key != label}
        for changed in (fewer, {**labels, label: "9"}):
            assert broken_change(member(changed, "gputile.io/gang", "other"), waits, policy) == ["gang-gate"]
            assert broken_change(member(changed, "other"), gone, policy) == [], "it has been let go"
    assert broken_change(member({}), member(labels, "gputile.io/gang"), policy) == ["gang-gate"] * (1 + len(labels))


def test_a_gate_on_a_pod_of_no_gang_is_nobodys() -> None:
    assert (
        broken_change(member({"mine": "x"}), member({"mine": "x"}, "gputile.io/gang"), replace(POLICY, gangs=True))
        == []
    )


def test_where_gangs_are_off_anybody_may_remove_a_gate_that_was_left() -> None:
    """Nobody else would: the controller looks after gangs only where they are on."""
    assert broken_change(member(GANG), member(GANG, "gputile.io/gang")) == []


@pytest.mark.requirement("B2")
@pytest.mark.parametrize(
    "key", [ALLOCATION, "gputile.io/memory-unit-mib", "ALIYUN_COM_GPU_MEM_IDX", "kubernetes.io/config.mirror"]
)
def test_only_gputile_binds_with_an_allocation(key: str) -> None:
    """The API server merges a Binding's annotations into the pod."""
    binding = {"metadata": {"name": "p", "annotations": {key: "1"}}, "target": {"kind": "Node", "name": "n"}}
    assert [str(r.rule) for r in validate(request(binding, kind="Binding", sub="binding"), POLICY).refusals] == [
        "forged-allocation"
    ]
    trusted = request(binding, kind="Binding", sub="binding", user="system:serviceaccount:gputile:gputile-extender")
    assert validate(trusted, POLICY).refusals == ()


def annotated(count: int) -> Json:
    return {"annotations": {f"a{i}": "" for i in range(count)}}


@pytest.mark.parametrize(
    "many",
    [
        pod(GPU, ephemeralContainers=[{"name": f"d{i}"} for i in range(21_000)]),
        pod(GPU, meta=annotated(41_000)),
        pod(GPU, volumes=[{}] * 21_000) | {"spec": {"schedulerName": 7, "tolerations": [{}] * 21_000}},
    ],
    ids=["containers", "annotations", "type error"],
)
def test_an_object_of_very_many_items_is_not_decoded(many: Json) -> None:
    """Neither a new pod nor a change of one, whether it says so itself or the pod before it did."""
    asked = (mutate, request(many)), (validate, request(many)), (validate, request(many, many))
    for judge, change in (*asked, (validate, request(pod(GPU), many))):
        (refusal,) = judge(change, POLICY).refusals
        assert refusal.rule is AdmissionRule.POD
        assert "more than 40960 fields and entries" in refusal.text


def test_a_large_pod_is_judged_as_any_other() -> None:
    mounts = {"volumeMounts": [{"name": "v", "mountPath": f"/{i}"} for i in range(4096)]}
    assert broken(pod(GPU, container=mounts, volumes=[{"name": f"v{i}"} for i in range(1024)])) == []


@pytest.mark.requirement("B2")
def test_a_binding_brings_no_devices_and_no_number_of_gpus() -> None:
    """The API server merges its labels into the pod too."""
    target = {"kind": "Node", "name": "n"}
    labels = {"metadata": {"name": "p", "labels": {"aliyun.com/gpu-count": "2"}}, "target": target}
    devices = {"metadata": {"name": "p", "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}, "target": target}
    for binding, rule in ((labels, "gpu-count-changed"), (devices, "device-annotation")):
        asked = request(binding, kind="Binding", sub="binding")
        assert [str(refusal.rule) for refusal in validate(asked, POLICY).refusals] == [rule]
    assert validate(request(devices, kind="Binding", sub="binding"), UNSAFE).refusals == ()
    trusted = request(labels, kind="Binding", sub="binding", user="system:serviceaccount:gputile:gputile-extender")
    assert validate(trusted, POLICY).refusals == ()


@pytest.mark.requirement("B2")
def test_devices_are_not_added_to_a_pod_that_exists() -> None:
    """Its containers may not have started yet, or start again; what was there before is not judged again."""
    device = {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}
    for sub in ("", "status"):
        assert broken_change(pod(meta=device), pod(), sub=sub) == ["device-annotation"]
        assert broken_change(pod(meta=device), pod(meta=device), sub=sub) == []
        assert broken_change(pod(), pod(meta=device), sub=sub) == []


@pytest.mark.requirement("B2")
def test_an_ephemeral_container_gets_no_further_than_the_others() -> None:
    """What is added is judged, what was there is not."""

    def debugged(**container: Any) -> Json:
        return pod(GPU, ephemeralContainers=[{"name": "d", **container}])

    old = pod(GPU)
    assert broken_change(debugged(), old, sub="ephemeralcontainers") == []
    escape = debugged(**env("NVIDIA_VISIBLE_DEVICES", value="all"))
    assert broken_change(escape, old, sub="ephemeralcontainers") == ["environment"]
    assert broken_change(escape, escape, sub="ephemeralcontainers") == []
    assert broken_change(debugged(**secure(privileged=True)), old, sub="ephemeralcontainers") == ["privileged"]
    for path in ("/etc/gputile", "/x/../etc/gputile", "/etc"):
        assert broken_change(debugged(**mount(path)), old, sub="ephemeralcontainers") == ["mount"]


def test_a_pod_from_before_the_rules_can_still_be_changed_and_end() -> None:
    """An update is judged by what it changes: finalizers come off, labels go on."""
    old = pod(GPU, container=env("NVIDIA_VISIBLE_DEVICES", value="all"), hostIPC=True, nodeName="n")
    assert broken_change({**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}}, old) == []


def test_static_pods_are_reported_as_they_run() -> None:
    """A kubelet's mirror pod is stored unchanged; nobody else gets past with its annotation."""
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    body = pod(GPU, meta=mirror, nodeName="n")
    verdict = mutate(request(body, user="system:node:n", groups=("system:nodes",)), POLICY)
    assert (verdict.operations, verdict.refusals) == ((), ())
    assert broken(body) == ["node-name"]


def test_what_gputile_has_no_rules_about_is_let_through() -> None:
    """A configuration that sends too much must not stop the cluster."""
    assert not mutate(request({"spec": 5}, kind="Deployment"), POLICY).refusals
    assert not validate(request(None, kind="Pod", sub="eviction"), POLICY).refusals


@pytest.mark.parametrize(
    "body", [None, [], 5, {"spec": []}, {"metadata": {"annotations": {"a": 1}}}, {"spec": {"containers": {}}}]
)
def test_what_is_no_pod_cannot_be_read(body: Any) -> None:
    with pytest.raises(UnreadableReview):
        mutate(request(body), POLICY)
    with pytest.raises(UnreadableReview):
        validate(request(body), POLICY)


@pytest.mark.requirement("G4", "M7")
@pytest.mark.parametrize(
    ("annotations", "broken"),
    [
        ({"gputile.io/gpu-weight": "1", "gputile.io/mps-active-thread-percentage": "50"}, 0),
        ({"gputile.io/gpu-weight": "0"}, 1),
        ({"gputile.io/gpu-weight": "1001"}, 1),
        ({"gputile.io/gpu-weight": ""}, 1),
        ({"gputile.io/mps-active-thread-percentage": "101"}, 1),
        ({"gputile.io/gpu-weight": "\u00b2", "gputile.io/mps-active-thread-percentage": "x" * 10_000}, 2),
    ],
)
def test_how_a_gpu_is_shared_is_said_in_valid_numbers(annotations: dict[str, str], broken: int) -> None:
    """On creation, and where a change brings it in; what was there before is not judged again."""
    author = pod({"aliyun.com/gpu-mem": "1"}, meta={"annotations": annotations})
    plain = pod({"aliyun.com/gpu-mem": "1"})
    for verdict in (mutate(request(author), POLICY), validate(request(author, plain), POLICY)):
        assert [refusal.rule for refusal in verdict.refusals] == [AdmissionRule.SHARE] * broken
    assert validate(request(author, author), POLICY).refusals == ()


@pytest.mark.requirement("G4")
@pytest.mark.parametrize(
    ("most", "namespaces", "weight", "allowed"),
    [
        (1, {}, 2, False),
        (10, {}, 10, True),
        (10, {}, 11, False),
        (1, {"team": 1000}, 1000, True),
        (1000, {"team": 1}, 2, False),
        (1, {"other": 1000}, 2, False),
    ],
)
def test_who_may_have_which_weight_is_the_owners_policy(
    most: int, namespaces: dict[str, int], weight: int, allowed: bool
) -> None:
    """On creation, by a change and by a Binding; the refusal names the most that the namespace may have."""
    policy = replace(POLICY, time=GpuTime(max_weight=most, namespace_max_weight=namespaces))
    annotations = {"annotations": {"gputile.io/gpu-weight": str(weight)}}
    heavy, plain = pod({MEM: "1"}, meta=annotations), pod({MEM: "1"})
    binding = {"metadata": {"name": "p", **annotations}, "target": {"kind": "Node", "name": "n"}}
    for verdict in (
        mutate(request(heavy), policy),
        validate(request(heavy), policy),
        validate(request(heavy, plain), policy),
        validate(request(heavy, plain, sub="status"), policy),
        validate(request(binding, kind="Binding", sub="binding"), policy),
    ):
        assert [refusal.rule for refusal in verdict.refusals] == [AdmissionRule.SHARE] * (not allowed)
        for refusal in verdict.refusals:
            assert f" are 1 to {namespaces.get('team', most)}" in refusal.text
    assert validate(request(heavy, heavy), policy).refusals == ()


@pytest.mark.requirement("L3")
def test_a_zero_under_the_old_name_takes_nothing_from_the_amount_under_the_new_one() -> None:
    verdict = mutate(request(pod({"nvidia.com/gpu": "1", "alpha.kubernetes.io/nvidia-gpu": "0"})), POLICY)
    assert verdict.refusals == ()
    changed = {operation.op for operation in verdict.operations if "resources" in operation.path}
    assert changed == {"remove"}
