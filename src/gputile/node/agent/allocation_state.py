"""Defines the agent's state of the node, on which each of its decisions is based.

It is plain data: pods, devices, and what is advertised. Functions that decide get the state as an
argument; they never wait or do I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeCondition, ObjectMeta, Pod, unversioned
from gputile.api.well_known import GPU_CORE, GPU_MEMORY
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.request import ContainerRequest, Phase
from gputile.node.agent.device_table import (
    DeviceTable,
    KubeletEntry,
    Limits,
    Listing,
    PodDevices,
    PreparedClaim,
    directory_name,
)
from gputile.node.agent.known_pods import KnownPod, PodCache, read_again
from gputile.node.agent.node_config import EffectiveMode, NodeConfig


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """The mode that is now in force; conditions report it, or why the requested mode is not.

    ``closing`` is True if the node must take no new pods because a change of mode is about to
    happen.
    """

    effective_mode: EffectiveMode
    conditions: tuple[NodeCondition, ...]
    closing: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedMemory:
    """The memory of a GPU that pods have yet to receive: the number of IDs and their total MiB."""

    ids: int = 0
    mib: int = 0


@dataclass(slots=True)
class Advertised:
    """What the node advertises now.

    ``decided`` is the decision in force. ``effective_mode`` is the mode that survives a restart:
    None until the node's labels were known once. ``other_plugin`` is the evidence that another
    plugin serves the node instead. ``resources`` were advertised to the kubelet, with the IDs that
    pods were ``expected`` to get. ``unsaved`` is True while the checkpoint is out of date.
    ``closed_since`` is when the node was first seen closed before a change of mode.
    """

    decided: ModeDecision
    effective_mode: EffectiveMode | None = None
    other_plugin: str | None = None
    resources: tuple[str, ...] = ()
    expected: Mapping[str, ExpectedMemory] = field(default_factory=dict)
    unsaved: bool = False
    closed_since: float | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The container for which the kubelet makes a call.

    ``key`` is the key of its pod. ``pod`` and ``request`` are None if the API server does not know
    the pod, such as a static pod without a mirror pod; ``request`` is also None if it is invalid.
    ``sure`` is True if nothing speaks against this container.
    """

    key: str
    container: str
    pod: KnownPod | None = None
    request: ContainerRequest | None = None
    sure: bool = False

    @property
    def uid(self) -> str:
        """The UID of its pod; "" if that is unknown."""
        return self.pod.uid if self.pod is not None else ""

    @property
    def phase(self) -> Phase:
        return self.request.phase if self.request is not None else Phase.APP


UNKNOWN_CALLER: Final = Caller("", "")


@dataclass(slots=True)
class KubeletStatus:
    """The state of the kubelet itself.

    ``listing`` is its latest list of pods. It is not ``complete`` while the kubelet does not
    answer, and for some time after its start, when it admits its pods one by one. ``silent`` is
    True while it does not answer.
    """

    complete: bool = False
    silent: bool = False
    listing: Listing = field(default_factory=dict)


@dataclass(slots=True)
class AllocationState:
    """The agent's state of its node.

    ``pods`` are the pods bound to the node, by key; ``node`` is None until it was read.
    ``node_config`` is what the node offers, ``labels`` are the node's labels from which it was
    computed, and ``advertised`` is what was sent to the kubelet. ``device_table`` is derived from
    the following fields. ``written`` are the entries of the kubelet's checkpoint when it was last
    read, or what the kubelet lists while it cannot be read; ``unread`` is the reason why it cannot.
    ``records`` are the records of the allocation directories, by name; ``started`` are the
    directories whose containers were allowed to start. ``of_other_plugins`` are the device IDs that
    other plugins have registered, by resource, as JSON. ``claims`` are the prepared claims, by UID.

    ``answered`` are the allocation directories of Allocate responses that the kubelet has yet to
    checkpoint. ``last_uid`` is the UID of the pod last seen in admission.
    """

    configuration: Configuration
    node_config: NodeConfig
    device_table: DeviceTable = field(default_factory=DeviceTable)
    pods: PodCache = field(default_factory=PodCache)
    labels: Mapping[str, str] = field(default_factory=dict)
    node: Node | None = None
    written: tuple[KubeletEntry, ...] = ()
    unread: str = ""
    records: dict[str, Limits] = field(default_factory=dict)
    started: frozenset[str] = frozenset()
    of_other_plugins: Mapping[str, bytes] = field(default_factory=dict)
    claims: Mapping[str, PreparedClaim] = field(default_factory=dict)
    kubelet: KubeletStatus = field(init=False, default_factory=KubeletStatus)
    answered: set[str] = field(init=False, default_factory=set)
    last_uid: str = field(init=False, default="")
    advertised: Advertised = field(init=False)

    def __post_init__(self) -> None:
        self.advertised = Advertised(ModeDecision(self.node_config.effective_mode, ()))

    def apply_node(self, node: Node | None) -> bool:
        """Store the node, if any; return whether more than its resourceVersion changed."""
        before, self.node = self.node, node
        return before is None or node is None or unversioned(before) != unversioned(node)

    def configure(self, configuration: Configuration) -> None:
        self.configuration = configuration
        read_again(self.pods, configuration)

    def record_listing(self, listing: Listing | None, *, settled: bool) -> None:
        """Record the list of the kubelet; None if it did not answer."""
        known = self.kubelet.listing if listing is None else listing
        self.kubelet = KubeletStatus(settled and listing is not None, listing is None, known)

    def pod_of(self, pod_devices: PodDevices) -> KnownPod | None:
        """Return the pod with the devices; None if it is unknown or a new pod has its name."""
        pod = self.pods.get(pod_devices.key)
        return pod if pod is not None and pod.uid == pod_devices.pod_uid else None

    def gpus(self, pod_devices: PodDevices, container: str, pod: KnownPod | None) -> frozenset[str]:
        """Return the UUIDs of a container's GPUs; ``pod`` is None if it is unknown.

        A container that inherits the IDs of an init container gets them in any order, possibly from
        fewer GPUs than it requests. In that case the result is as many GPUs of the pod.
        """
        held = pod_devices.container_gpus.get(container, frozenset())
        count = pod.shared_gpus if pod is not None and self.node_config.mode.shared else 0
        whole = not count or len(held) == count
        return held if whole else frozenset(sorted(pod_devices.gpus)[:count])

    def shares(self, pod_devices: PodDevices, container: str) -> tuple[GpuShare, ...]:
        """Return a container's share of each of its GPUs, sorted by index.

        The amounts are those in the pod's specification, since the container's IDs may be
        incomplete: the kubelet allocates the two resources one after the other. If the
        specification is unknown, the IDs determine the amounts.
        """
        if isinstance(pod_devices, PreparedClaim):
            return pod_devices.shares
        pod, config, shares = self.pod_of(pod_devices), self.node_config, []
        request = pod.container_request(container) if pod is not None else None
        uuids = self.gpus(pod_devices, container, pod)
        for gpu in config.gpus(uuids):
            if not config.mode.shared:
                mib, percent = gpu.mib, 100
            elif request is not None:
                mib = request.units * pod_devices.unit_mib // len(uuids)
                percent = request.percent // len(uuids)
            else:
                mib = (
                    len(pod_devices.container_ids(container, GPU_MEMORY).get(gpu.uuid, ()))
                    * pod_devices.unit_mib
                )
                percent = len(pod_devices.container_ids(container, GPU_CORE).get(gpu.uuid, ()))
            shares.append(GpuShare(gpu.uuid, gpu.index, mib, percent))
        return tuple(shares)

    def directories(self) -> set[str]:
        """Return the names of all allocation directories that containers may use.

        This includes those that the kubelet has forgotten.
        """
        own = {
            directory_name(pod.uid, container.name)
            for pod in self.pods.values()
            if pod.request is not None and pod.alive
            for container in pod.request.containers
        }
        return own | self.device_table.directories()

    def unit_mib(self, pod: KnownPod | None) -> int:
        """Return a pod's memory unit, which never changes; if unknown, the unit in force."""
        own = pod.request.unit_mib if pod is not None and pod.request is not None else 0
        return own or self.node_config.effective_mode.unit_mib

    def new_row(self, uid: str, key: str, pod: KnownPod | None, since_ns: int = 0) -> PodDevices:
        """Return a pod's row without devices; ``key`` is "" and ``pod`` None if it is unknown."""
        namespace, _, name = key.partition("/")
        group = pod.trust_group if pod is not None else self.trust_group(namespace)
        unit, mode = self.unit_mib(pod), self.node_config.mode.value
        return PodDevices(uid, namespace, name, unit, mode, group, since_ns, identified=bool(key))

    def trust_group(self, namespace: str) -> str:
        return self.configuration.trust_group(Pod(metadata=ObjectMeta(namespace=namespace)))
