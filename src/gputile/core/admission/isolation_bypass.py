"""Refuses ways to use a GPU without an allocation, unless the namespace's label allows them (B2).

Pods without GPUs are not sent to the webhook. The API server applies the same rules to them, as CEL
policies in ``examples/webhook/policies.yaml``. ``make policies`` generates the lists there from the
constants here. For GPU pods, the webhook reports these rules together with all other mistakes of
the pod.
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

# Variables of NVIDIA's container toolkit (the GPUs and control devices of a container), and of
# CUDA's MPS clients (the daemon and the memory limit). The prefix is for gputile's own limits.
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
# Capabilities that can remove a container's limits (capabilities(7)). BPF can detach the device
# rules of a cgroup, and DAC_READ_SEARCH can open files of the node by their handles.
CAPABILITIES: Final = ("ALL", "BPF", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO")

# Paths of GPUs, their daemons and their limits on a node. No pod may mount these paths.
GPU_PATHS: Final = (
    "/dev/nvidia",
    "/var/lib/gputile",
    "/run/gputile",
    "/tmp/nvidia-mps",  # noqa: S108 - a name to refuse
    "/run/nvidia/mps",
)
# Other paths on a node that lead to GPUs. Pods with GPUs may not mount them. They are devices,
# NVIDIA's daemons, settings of the kernel, and everything that can start containers or programs:
# sockets, state and configuration of runtimes and kubelets, plugins of CNI and NRI, static pods,
# services of systemd and D-Bus. Whole directories are listed if distributions differ below them.
NODE_PATHS: Final = (
    "/dev/char",
    "/dev/dri",
    "/dev/fd",  # a link to the open files of the process that follows the link
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
# Links of a process to its root and working directory (proc_pid_root(5)), which lead to any path
_PROCESS: Final = re.compile(r"/proc/([0-9]+|self|thread-self)(/|\Z)")
_PROCESS_ROOT: Final = re.compile(
    r"/proc/([0-9]+|self|thread-self)/(task/[0-9]+/)?(root|cwd)(/|\Z)"
)
# Paths in a container from which the container toolkit reads its settings.
TOOLKIT_DIRECTORY: Final = "nvidia-container-devices"
TOOLKIT_PATHS: Final = (f"/run/{TOOLKIT_DIRECTORY}",)
# gputile's limits and library, and the lists by which ld.so(8) and Nix's loader find the library
LIMIT_PATHS: Final = ("/etc/gputile", "/etc/ld-nix.so.preload", "/etc/ld.so.preload")
# The sockets of MPS's control daemon, which enforces the limits in mode mps.
DAEMON_PATHS: Final = ("/tmp/nvidia-mps",)  # noqa: S108 - a name to refuse

# Prefixes of annotations by which runtimes and their plugins add devices without the kubelet

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


def access_refusals(pod: PodView, *, gpu: bool) -> Iterator[Refusal[AdmissionRule]]:
    """Yield a refusal for each way in which the pod could use GPUs without an allocation.

    ``gpu`` states whether the pod requests GPUs.
    """
    if gpu:
        yield from _privileged(pod)
        yield from _host_namespaces(pod)
        yield from _node_name(pod)
    yield from _host_paths(pod, gpu)
    yield from _mounts(pod, gpu)
    yield from _device_annotations(pod)
    yield from _environment(pod)


def plain_path(path: str) -> str:
    """Normalize a path without resolving links: drop "//" and "/./", replace /var/run with /run.

    ".." is not removed, since its target depends on links. ``has_dot_dot`` finds paths with "..".
    """
    plain = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    return plain.removeprefix("/var") if f"{plain}/".startswith("/var/run/") else plain


def has_dot_dot(path: str) -> bool:
    """Return whether a path contains "..". The API server allows this only for mount paths."""
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
                    f"{where}.env[{name}]: which GPUs a container gets, and how much of them, is "
                    f"decided by its booking: remove the variable, {_OWNER}",
                )


def _host_paths(pod: PodView, gpu: bool) -> Iterator[Refusal[AdmissionRule]]:
    for volume in pod.spec.volumes:
        if volume.host_path is None:
            continue
        path = plain_path(volume.host_path.path)
        to_gpus = path.startswith(GPU_PATHS[0]) or any(
            _within(path, protected) for protected in GPU_PATHS[1:]
        )
        if (
            has_dot_dot(path)
            or _PROCESS_ROOT.match(path)
            or to_gpus
            or (gpu and (path in _ANCESTORS or not _NODE_PATHS.isdisjoint(_directories(path))))
        ):
            yield Refusal(
                AdmissionRule.HOST_PATH,
                f"spec.volumes[{volume.name}].hostPath.path: {volume.host_path.path} leads to GPUs "
                f"or their limits: remove the volume, {_OWNER}",
            )


def _directories(path: str) -> Iterator[str]:
    """Yield a path and its ancestors, except those deeper than the deepest protected path."""
    parts = path.split("/", _DEEPEST + 1)[: _DEEPEST + 1]
    return ("/".join(parts[: depth + 1]) or "/" for depth in range(len(parts)))


_DEEPEST: Final = max(path.count("/") for path in (*GPU_PATHS, *NODE_PATHS))
_NODE_PATHS: Final = frozenset(NODE_PATHS)
_ANCESTORS: Final = frozenset(
    directory for path in (*GPU_PATHS, *NODE_PATHS) for directory in _directories(path)
)


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _mounts(pod: PodView, gpu: bool) -> Iterator[Refusal[AdmissionRule]]:
    for where, container in pod.containers():
        mounts = [
            (f"volumeMounts[{mount.name}].mountPath", mount.mount_path)
            for mount in container.volume_mounts
        ]
        mounts += [
            (f"volumeDevices[{each.name}].devicePath", each.device_path)
            for each in container.volume_devices
        ]
        # The kubelet mounts a file at this path that the container may write
        if container.termination_message_path:
            mounts.append(("terminationMessagePath", container.termination_message_path))
        for field, path in mounts:
            why = _mount_problem(path, gpu)
            if why is not None:
                yield Refusal(AdmissionRule.MOUNT, f"{where}.{field}: {path} {why}, {_OWNER}")


def _mount_problem(path: str, gpu: bool) -> str | None:
    """Return why no volume may be mounted at a path, with the remedy, or None if it is allowed.

    A volume that is mounted on a parent of ``LIMIT_PATHS`` does not hide the limits at first, since
    runtimes mount deeper paths later. But another container with the same volume could then remove
    the mount points of the limits.
    """
    elsewhere = "where a container's GPUs and limits are written: choose another path"
    if has_dot_dot(path):
        if gpu or TOOLKIT_DIRECTORY in path.split("/"):
            return "contains '..', whose target depends on links: write the path without '..'"
        return None
    plain = plain_path(path)
    if gpu and _PROCESS.match(plain):
        return "follows links of a process, which can lead to any path: write the actual path"
    if any(
        _within(plain, each)
        for each in (*TOOLKIT_PATHS, *((*LIMIT_PATHS, *DAEMON_PATHS) if gpu else ()))
    ):
        return f"is {elsewhere}"
    if gpu and any(_within(each, plain) for each in LIMIT_PATHS):
        return f"contains the path {elsewhere}"
    return None


def _device_annotations(pod: PodView) -> Iterator[Refusal[AdmissionRule]]:
    for key in pod.metadata.annotations:
        if key.startswith(DEVICE_ANNOTATIONS):
            yield Refusal(
                AdmissionRule.DEVICE_ANNOTATION,
                f"metadata.annotations[{key}]: devices are added by the device plugin alone: "
                f"remove the annotation, {_OWNER}",
            )


def _privileged(pod: PodView) -> Iterator[Refusal[AdmissionRule]]:
    for where, container in pod.containers():
        context = container.security_context
        if context is None:
            continue
        if context.privileged:
            yield Refusal(
                AdmissionRule.PRIVILEGED,
                f"{where}.securityContext.privileged: a privileged container sees every GPU of its "
                f"node: set it to false, {_OWNER}",
            )
        for name in context.capabilities.add if context.capabilities is not None else ():
            # Runtimes convert to upper case by Unicode: "\N{LATIN SMALL LETTER LONG S}" becomes S

            if not name.isascii() or name.upper().removeprefix("CAP_") in CAPABILITIES:
                yield Refusal(
                    AdmissionRule.PRIVILEGED,
                    f"{where}.securityContext.capabilities.add: {name} lets a container of a GPU "
                    f"pod undo its limits: remove it, {_OWNER}",
                )


def _host_namespaces(pod: PodView) -> Iterator[Refusal[AdmissionRule]]:
    for field, used in (("hostPID", pod.spec.host_pid), ("hostIPC", pod.spec.host_ipc)):
        if used:
            yield Refusal(
                AdmissionRule.HOST_NAMESPACE,
                f"spec.{field}: a GPU pod in the node's namespace reaches the processes of others "
                f"on its GPUs: set it to false, {_OWNER}",
            )


def _node_name(pod: PodView) -> Iterator[Refusal[AdmissionRule]]:
    if pod.spec.node_name:
        yield Refusal(
            AdmissionRule.NODE_NAME,
            f"spec.nodeName: {pod.spec.node_name} bypasses the scheduler, so that no GPU is "
            f"booked: use nodeSelector or affinity, {_OWNER}",
        )
