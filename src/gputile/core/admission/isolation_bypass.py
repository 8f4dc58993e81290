"""Refuses ways to use a GPU without an allocation, unless the namespace's label allows them (B2).

The same rules stand in CEL in ``examples/webhook/policies.yaml``, where the API server applies them to pods without
GPUs, which are not sent to the webhook; ``make policies`` writes the lists there from the constants here. Here they are
reported together with everything else that is wrong with a GPU pod.
"""

import re
from collections.abc import Iterator
from typing import Final

from gputile.api.well_known import (
    CDI_ANNOTATION_PREFIX,
    CRIO_DEVICE_ANNOTATION,
    GKE_DEVICE_ANNOTATION_PREFIX,
    NRI_CDI_ANNOTATION_PREFIX,
    NRI_CDI_INJECTOR_PREFIX,
    NRI_DEVICE_ANNOTATION_PREFIX,
    NRI_MOUNT_ANNOTATION_PREFIX,
    NVIDIA_CDI_ANNOTATION_PREFIX,
    OLD_CRIO_DEVICE_ANNOTATION,
    OLD_NRI_CDI_ANNOTATION_PREFIX,
    OLD_NRI_DEVICE_ANNOTATION_PREFIX,
    OLD_NRI_MOUNT_ANNOTATION_PREFIX,
    UNSAFE_ACCESS_LABEL,
)
from gputile.core.admission.pod_view import PodView
from gputile.core.refusal import AdmissionRule, Refusal

# Read by NVIDIA's container toolkit (which GPUs and control devices a container gets), by CUDA's MPS clients (whose
# daemon, and how much memory), and by gputile's limits.
ENVIRONMENT: Final = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_NVSWITCH",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)
ENVIRONMENT_PREFIX: Final = "GPUTILE_"
HARMLESS: Final = ("none", "void")  # values of NVIDIA_VISIBLE_DEVICES that show no GPU
# They undo what the container is limited by; capabilities(7): BPF detaches device rules of a cgroup, DAC_READ_SEARCH
# opens the node's files by their handles.
CAPABILITIES: Final = ("ALL", "BPF", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO")

# Where GPUs, their daemons and their limits are on a node: no pod may mount these paths.
GPU_PATHS: Final = (
    "/dev/nvidia",
    "/var/lib/gputile",
    "/run/gputile",
    "/tmp/nvidia-mps",  # noqa: S108 - a name to refuse
    "/run/nvidia/mps",
)
# Other ways to the same on a node, kept from pods that hold a GPU: devices, NVIDIA's daemons, what the kernel lets one
# change, and what starts containers or programs with them (sockets, state and configuration of runtimes and kubelets,
# plugins of CNI and NRI, static pods, services of systemd and D-Bus). Whole directories where distributions differ in
# what is below them.
NODE_PATHS: Final = (
    "/dev/char",
    "/dev/dri",
    "/dev/fd",  # a link to what the program that follows it has open
    "/dev/mem",
    "/dev/vfio",
    "/etc/cdi",
    "/etc/cni",
    "/etc/containerd",
    "/etc/containers",
    "/etc/crio",
    "/etc/dbus-1",
    "/etc/default",
    "/etc/docker",
    "/etc/k0s",
    "/etc/kubernetes",
    "/etc/nri",
    "/etc/nvidia-container-runtime",
    "/etc/rancher",
    "/etc/sysconfig",
    "/etc/systemd",
    "/lib/systemd",
    "/opt/cni",
    "/opt/nri",
    "/proc",
    "/run/api.sock",
    "/run/buildkit",
    "/run/cdi",
    "/run/containerd",
    "/run/containers",
    "/run/cri-dockerd.sock",
    "/run/crio",
    "/run/crun",
    "/run/dbus",
    "/run/docker",
    "/run/docker.sock",
    "/run/dockershim.sock",
    "/run/host-containerd",
    "/run/isulad.sock",
    "/run/k0s",
    "/run/k3s",
    "/run/kata-containers",
    "/run/libpod",
    "/run/nri",
    "/run/nvidia",
    "/run/nvidia-fabricmanager",
    "/run/nvidia-persistenced",
    "/run/podman",
    "/run/runc",
    "/run/systemd",
    "/run/user",
    "/run/vc",
    "/sys",
    "/usr/lib/systemd",
    "/usr/libexec/crio",
    "/usr/libexec/kubernetes",
    "/usr/local/lib/systemd",
    "/usr/local/nvidia/toolkit",
    "/usr/local/share/dbus-1",
    "/usr/share/containers",
    "/usr/share/dbus-1",
    "/var/lib/buildkit",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/crio",
    "/var/lib/docker",
    "/var/lib/k0s",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/snap",
)
# Links of a process to a root or a working directory (proc_pid_root(5)), which any path may go on from.
_PROCESS: Final = re.compile(r"/proc/([0-9]+|self|thread-self)(/|\Z)")
_PROCESS_ROOT: Final = re.compile(r"/proc/([0-9]+|self|thread-self)/(task/[0-9]+/)?(root|cwd)(/|\Z)")
# Paths in a container where the container toolkit reads its settings, and gputile writes limits.
WISHES: Final = "nvidia-container-devices"
WISH_PATHS: Final = (f"/run/{WISHES}",)
# gputile's limits and library, and the lists by which loaders find it: ld.so(8), and that of Nix.
LIMIT_PATHS: Final = ("/etc/gputile", "/etc/ld-nix.so.preload", "/etc/ld.so.preload")
# The sockets of MPS's control daemon, which keeps the limits in mode mps.
DAEMON_PATHS: Final = ("/tmp/nvidia-mps",)  # noqa: S108 - a name to refuse

# What annotations begin with by which runtimes and their plugins add devices and mounts, past the kubelet.
DEVICE_ANNOTATIONS: Final = (
    CDI_ANNOTATION_PREFIX,
    NVIDIA_CDI_ANNOTATION_PREFIX,
    NRI_CDI_ANNOTATION_PREFIX,
    NRI_DEVICE_ANNOTATION_PREFIX,
    NRI_MOUNT_ANNOTATION_PREFIX,
    OLD_NRI_CDI_ANNOTATION_PREFIX,
    OLD_NRI_DEVICE_ANNOTATION_PREFIX,
    OLD_NRI_MOUNT_ANNOTATION_PREFIX,
    NRI_CDI_INJECTOR_PREFIX,
    GKE_DEVICE_ANNOTATION_PREFIX,
    CRIO_DEVICE_ANNOTATION,
    OLD_CRIO_DEVICE_ANNOTATION,
)

_OWNER = f"or ask the cluster's owner to label the namespace {UNSAFE_ACCESS_LABEL}=allowed"


def broken_access(pod: PodView, *, gpu: bool) -> Iterator[Refusal[AdmissionRule]]:
    """Yield every bypass of the ledger in the pod; ``gpu`` says whether it asks for GPUs."""
    if gpu:
        yield from _privileged(pod)
        yield from _host_namespaces(pod)
        yield from _node_name(pod)
    yield from _host_paths(pod, gpu)
    yield from _mounts(pod, gpu)
    yield from _device_annotations(pod)
    yield from _environment(pod)


def plain_path(path: str) -> str:
    """Return a path as the node would resolve it without its links: no "//", no "/./"; /var/run is /run.

    ".." stays, because its target depends on links; ``climbs`` finds paths with it.
    """
    plain = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    return plain.removeprefix("/var") if f"{plain}/".startswith("/var/run/") else plain


def climbs(path: str) -> bool:
    """Return whether a path goes up by ".."; the API server refuses that in all paths but those of mounts."""
    return ".." in path.split("/")


def _environment(pod: PodView) -> Iterator[Refusal[AdmissionRule]]:
    for where, container in pod.containers():
        for variable in container.env:
            name = variable.name
            if name == ENVIRONMENT[0] and variable.value in HARMLESS:
                continue
            if name in ENVIRONMENT or name.startswith(ENVIRONMENT_PREFIX):
                yield Refusal(
                    AdmissionRule.ENVIRONMENT,
                    f"{where}.env[{name}]: which GPUs a container gets, and how much of them, is decided by its "
                    f"booking: remove the variable, {_OWNER}",
                )


def _host_paths(pod: PodView, gpu: bool) -> Iterator[Refusal[AdmissionRule]]:
    for volume in pod.spec.volumes:
        if volume.host_path is None:
            continue
        path = plain_path(volume.host_path.path)
        to_gpus = path.startswith(GPU_PATHS[0]) or any(_within(path, protected) for protected in GPU_PATHS[1:])
        if climbs(path) or _PROCESS_ROOT.match(path) or to_gpus or (gpu and _leads_to_the_node(path)):
            yield Refusal(
                AdmissionRule.HOST_PATH,
                f"spec.volumes[{volume.name}].hostPath.path: {volume.host_path.path} leads to GPUs or their limits: "
                f"remove the volume, {_OWNER}",
            )


def _leads_to_the_node(path: str) -> bool:
    return path in _ABOVE or not _NODE_PATHS.isdisjoint(_directories(path))


def _directories(path: str) -> Iterator[str]:
    """Yield the first few directories that lead to a path, and the path itself if it is no deeper."""
    parts = path.split("/", _DEEPEST + 1)[: _DEEPEST + 1]
    return ("/".join(parts[: depth + 1]) or "/" for depth in range(len(parts)))


_DEEPEST: Final = max(path.count("/") for path in (*GPU_PATHS, *NODE_PATHS))
_NODE_PATHS: Final = frozenset(NODE_PATHS)
_ABOVE: Final = frozenset(directory for path in (*GPU_PATHS, *NODE_PATHS) for directory in _directories(path))


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _mounts(pod: PodView, gpu: bool) -> Iterator[Refusal[AdmissionRule]]:
    for where, container in pod.containers():
        mounts = [(f"volumeMounts[{mount.name}].mountPath", mount.mount_path) for mount in container.volume_mounts]
        mounts += [(f"volumeDevices[{each.name}].devicePath", each.device_path) for each in container.volume_devices]
        if container.termination_message_path:  # the kubelet mounts a file there that the container may write
            mounts.append(("terminationMessagePath", container.termination_message_path))
        for field, path in mounts:
            why = _hides(path, gpu)
            if why is not None:
                yield Refusal(AdmissionRule.MOUNT, f"{where}.{field}: {path} {why}, {_OWNER}")


def _hides(path: str, gpu: bool) -> str | None:
    """Return why nothing may be mounted at a path in a container, with the remedy; None where something may.

    A volume at a directory that contains limits hides nothing at first, as runtimes mount what lies deeper later. But
    another container with the same volume can then remove the names on which the limits are mounted.
    """
    elsewhere = "where a container's GPUs and limits are written: choose another path"
    if climbs(path):
        if gpu or WISHES in path.split("/"):
            return "goes up by '..', and where that leads depends on links: write the path without it"
        return None
    plain = plain_path(path)
    if gpu and _PROCESS.match(plain):
        return "goes by the links of a process, which lead anywhere: write the path that is meant"
    if any(_within(plain, each) for each in (*WISH_PATHS, *((*LIMIT_PATHS, *DAEMON_PATHS) if gpu else ()))):
        return f"is {elsewhere}"
    if gpu and any(_within(each, plain) for each in LIMIT_PATHS):
        return f"holds the place {elsewhere}"
    return None


def _device_annotations(pod: PodView) -> Iterator[Refusal[AdmissionRule]]:
    for key in pod.metadata.annotations:
        if key.startswith(DEVICE_ANNOTATIONS):
            yield Refusal(
                AdmissionRule.DEVICE_ANNOTATION,
                f"metadata.annotations[{key}]: devices are added by the device plugin alone: remove the annotation, "
                f"{_OWNER}",
            )


def _privileged(pod: PodView) -> Iterator[Refusal[AdmissionRule]]:
    for where, container in pod.containers():
        context = container.security_context
        if context is None:
            continue
        if context.privileged:
            yield Refusal(
                AdmissionRule.PRIVILEGED,
                f"{where}.securityContext.privileged: a privileged container sees every GPU of its node: set it to "
                f"false, {_OWNER}",
            )
        for name in context.capabilities.add if context.capabilities is not None else ():
            # runtimes raise letters as Unicode does, which makes an S of a "\N{LATIN SMALL LETTER LONG S}"
            if not name.isascii() or name.upper().removeprefix("CAP_") in CAPABILITIES:
                yield Refusal(
                    AdmissionRule.PRIVILEGED,
                    f"{where}.securityContext.capabilities.add: {name} lets a container of a GPU pod undo its "
                    f"limits: remove it, {_OWNER}",
                )


def _host_namespaces(pod: PodView) -> Iterator[Refusal[AdmissionRule]]:
    for field, used in (("hostPID", pod.spec.host_pid), ("hostIPC", pod.spec.host_ipc)):
        if used:
            yield Refusal(
                AdmissionRule.HOST_NAMESPACE,
                f"spec.{field}: a GPU pod in the node's namespace reaches the processes of others on its GPUs: set it "
                f"to false, {_OWNER}",
            )


def _node_name(pod: PodView) -> Iterator[Refusal[AdmissionRule]]:
    if pod.spec.node_name:
        yield Refusal(
            AdmissionRule.NODE_NAME,
            f"spec.nodeName: {pod.spec.node_name} bypasses the scheduler, so that no GPU is booked: use nodeSelector "
            f"or affinity, {_OWNER}",
        )
