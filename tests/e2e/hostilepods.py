"""Pods that nobody may create: by their row in docs/reference/attacks.md, with the rule that refuses them."""

from typing import Any, Final

from tests.localcluster.admission import Json, pod

MEM, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"
ALLOCATION = "gputile.io/allocation"
OF_OTHER_TOOLS = ("ALIYUN_COM_GPU_MEM_IDX", "scheduler.framework.gpushare.allocation", "gputile.io/hold")
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def environment(name: str, value: str = "all") -> Json:
    """Return the part of a container that sets a variable."""
    return {"env": [{"name": name, "value": value}]}


def annotated(**annotations: str) -> Json:
    """Return the metadata with these annotations."""
    return {"annotations": annotations}


def _from_a_map() -> Json:
    source = {"configMapKeyRef": {"name": "m", "key": "k"}}
    return {"env": [{"name": VISIBLE, "valueFrom": source}]}


def _mounting(path: str) -> tuple[Json, Json]:
    mount = {"volumeMounts": [{"name": "v", "mountPath": path}]}
    return (
        pod("x", {MEM: 1}, container=mount, volumes=[{"name": "v", "emptyDir": {}}]),
        pod("x", {MEM: 1}, container={"terminationMessagePath": path}),
    )


def _secured(**context: Any) -> Json:
    return pod("x", {MEM: 1}, container={"securityContext": context})


def _of_the_host(path: str, limits: Json | None = None) -> Json:
    return pod("x", limits, volumes=[{"name": "v", "hostPath": {"path": path}}])


_FIRST: Final = {"name": "i", "image": "registry.example.com/x:1", **environment(VISIBLE)}
_COVERED: Final = (
    *("/etc/gputile/allocation", "/etc//gputile", "/etc/ld.so.preload", "/etc/ld-nix.so.preload"),
    *(
        "/tmp/../etc/gputile",
        "/x/../etc/ld.so.preload",
        "/proc/self/root/etc/gputile/allocation",
        "etc/gputile",
        "/etc",
    ),
)
_DEVICES: Final = ("/dev/nvidia0", "/dev//./nvidiactl", "/var/lib/gputile", "/proc/1/root/dev/nvidia0")
_OF_GPU_PODS: Final = (
    *("/", "/dev", "/dev/char/195:0", "/proc/1/root/dev", "/sys", "/var/lib/kubelet/device-plugins"),
    *("/var/run/containerd/containerd.sock", "/run/runc", "/var/run/docker.sock", "/etc/kubernetes"),
)
HOSTILE: Final[dict[str, tuple[str, tuple[Json, ...]]]] = {
    "forge-on-create": ("forged-allocation", (pod("x", {MEM: 1}, meta=annotated(**{ALLOCATION: "{}"})),)),
    "forge-for-other-tools": (
        "forged-allocation",
        tuple(pod("x", {MEM: 1}, meta=annotated(**{key: "0"})) for key in OF_OTHER_TOOLS),
    ),
    "forge-on-a-plain-pod": ("forged-allocation", (pod("x", meta=annotated(**{ALLOCATION: "{}"})),)),
    "choose-the-unit": ("memory-unit", (pod("x", {MEM: 100}, meta=annotated(**{"gputile.io/memory-unit-mib": "64"})),)),
    "all-devices": (
        "environment",
        (
            *(pod("x", {MEM: 1}, container=environment(VISIBLE, value)) for value in ("all", "0")),
            pod("x", {"nvidia.com/mig-1g.10gb": 1}, container=environment(VISIBLE)),
        ),
    ),
    "all-devices-without-a-gpu": ("environment", (pod("x", container=environment(VISIBLE)),)),
    "all-devices-from-a-map": ("environment", (pod("x", {MEM: 1}, container=_from_a_map()),)),
    "all-devices-in-an-init-container": ("environment", (pod("x", {MEM: 1}, initContainers=[_FIRST]),)),
    "more-memory-than-asked": (
        "environment",
        tuple(
            pod("x", {MEM: 1}, container=environment(name))
            for name in ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY", "GPUTILE_LIMITS")
        ),
    ),
    "cover-the-limits": ("mount", tuple(body for path in _COVERED for body in _mounting(path))),
    "privileged-gpu-pod": (
        "privileged",
        (
            _secured(privileged=True),
            *(_secured(capabilities={"add": [name]}) for name in ("SYS_ADMIN", "\u017fys_adm\u0131n")),
        ),
    ),
    "namespaces-of-the-node": (
        "host-namespace",
        (pod("x", {MEM: 1}, hostPID=True), pod("x", {MEM: 1}, hostIPC=True)),
    ),
    "gpus-by-host-path": (
        "host-path",
        (*map(_of_the_host, _DEVICES), *(_of_the_host(path, {MEM: 1}) for path in _OF_GPU_PODS)),
    ),
    "past-the-scheduler": ("node-name", (pod("x", {MEM: 1}, nodeName="security"),)),
    "as-a-static-pod": (
        "node-name",
        (pod("x", {MEM: 1}, meta=annotated(**{"kubernetes.io/config.mirror": "x"}), nodeName="security"),),
    ),
}
FIRST_OF_EACH: Final = tuple((bodies[0], rule) for rule, bodies in HOSTILE.values())
"""One pod of each row, with its rule."""
