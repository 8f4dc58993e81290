"""Defines the fields by which a pod could use GPUs without an allocation.

They are separate from ``api.core``, which is decoded for tens of thousands of pods. The fields here
are decoded for one pod at a time.
"""

from collections.abc import Iterator

import msgspec

from gputile.api.core import ObjectMeta, SchedulingGate
from gputile.api.well_known import GANG_GATE


class _PodPart(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """Base class of the parts of a pod. They have no cycles, so garbage collection skips them."""


class EnvVar(_PodPart):
    """core/v1 EnvVar."""

    name: str = ""
    value: str = ""


class Capabilities(_PodPart):
    """core/v1 Capabilities."""

    add: tuple[str, ...] = ()


class SecurityContext(_PodPart):
    """core/v1 SecurityContext."""

    privileged: bool | None = None
    capabilities: Capabilities | None = None


class VolumeMount(_PodPart):
    """core/v1 VolumeMount."""

    name: str = ""
    mount_path: str = ""


class VolumeDevice(_PodPart):
    """core/v1 VolumeDevice: a block volume."""

    name: str = ""
    device_path: str = ""


class ContainerView(_PodPart):
    """core/v1 Container and EphemeralContainer."""

    name: str = ""
    env: tuple[EnvVar, ...] = ()
    security_context: SecurityContext | None = None
    volume_mounts: tuple[VolumeMount, ...] = ()
    volume_devices: tuple[VolumeDevice, ...] = ()
    termination_message_path: str = ""


class HostPath(_PodPart):
    """core/v1 HostPathVolumeSource."""

    path: str = ""


class Volume(_PodPart):
    """core/v1 Volume."""

    name: str = ""
    host_path: HostPath | None = None


class PodSpecView(_PodPart):
    """core/v1 PodSpec."""

    containers: tuple[ContainerView, ...] = ()
    init_containers: tuple[ContainerView, ...] = ()
    ephemeral_containers: tuple[ContainerView, ...] = ()
    volumes: tuple[Volume, ...] = ()
    host_pid: bool = msgspec.field(default=False, name="hostPID")
    host_ipc: bool = msgspec.field(default=False, name="hostIPC")
    node_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class PodView(_PodPart):
    """core/v1 Pod or Binding. The API server merges the metadata of a Binding into the pod."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodSpecView = msgspec.field(default_factory=PodSpecView)

    @property
    def gated(self) -> bool:
        """Whether the pod has the scheduling gate of its gang."""
        return any(gate.name == GANG_GATE for gate in self.spec.scheduling_gates)

    def containers(self) -> Iterator[tuple[str, ContainerView]]:
        spec = self.spec
        for kind, containers in (
            ("initContainers", spec.init_containers),
            ("containers", spec.containers),
            ("ephemeralContainers", spec.ephemeral_containers),
        ):
            for container in containers:
                yield f"spec.{kind}[{container.name}]", container
