"""Defines the state of the node on which all decisions of the agent are based.

The state is plain data: pods, devices, the advertised resources, and the call that the kubelet is
expected to make next. Functions that decide receive the state as an argument. They must never wait
or do I/O.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

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
    """The mode that is in force, and the node conditions that report the mode.

    A condition states why a requested mode is not in force. ``closing`` is True if no new pods may
    be scheduled to the node, because the mode will change.
    """

    effective_mode: EffectiveMode
    conditions: tuple[NodeCondition, ...]
    closing: bool = False


ExpectedMemory = Mapping[str, tuple[int, int]]
"""The memory that pods still need on each GPU: the number of IDs, and their total MiB."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The container for which the kubelet makes a call.

    ``key`` is the key of the pod. ``pod`` and ``request`` are None if the API server does not have
    the pod, such as a static pod without a mirror pod. ``request`` is also None if it is invalid.
    ``sure`` is True if the pod is known and the container has not started.
    """

    key: str
    container: str
    pod: KnownPod | None = None
    request: ContainerRequest | None = None
    sure: bool = False

    @property
    def uid(self) -> str:
        """The UID of the pod, or "" if the pod is unknown."""
        return self.pod.uid if self.pod is not None else ""

    @property
    def phase(self) -> Phase:
        return self.request.phase if self.request is not None else Phase.APP


UNKNOWN_CALLER: Final = Caller("", "")


@dataclass(slots=True)
class AllocationState:
    """The agent's state of its node.

    ``device_table`` is derived from ``pods``, ``written``, ``records``, ``started``, ``answered``
    and ``claims``. While the kubelet's checkpoint cannot be read, ``written`` is derived from the
    kubelet's list.
    """

    configuration: Configuration
    node_config: NodeConfig  # what the node offers
    device_table: DeviceTable = field(default_factory=DeviceTable)
    pods: PodCache = field(default_factory=PodCache)  # the pods bound to the node, by key
    labels: Mapping[str, str] = field(default_factory=dict)  # node_config was computed from these
    node: Node | None = None  # None until the node was read
    written: tuple[KubeletEntry, ...] = ()  # the entries of the kubelet's checkpoint
    unread: str = ""  # why the kubelet's checkpoint cannot be read
    records: dict[str, Limits] = field(default_factory=dict)  # by allocation directory
    started: frozenset[str] = frozenset()  # directories whose containers were allowed to start
    of_other_plugins: Mapping[str, bytes] = field(default_factory=dict)  # IDs by resource, as JSON
    claims: Mapping[str, PreparedClaim] = field(default_factory=dict)  # prepared claims, by UID
    listing: Listing = field(init=False, default_factory=dict)  # the kubelet's latest list of pods
    # the keys of the pods that this kubelet has listed since its start
    once_listed: frozenset[str] = field(init=False, default=frozenset())
    # False while the kubelet does not answer, and for some time after its start, when it admits its
    # pods one by one
    listing_complete: bool = field(init=False, default=False)
    kubelet_epoch: float = field(init=False, default=0.0)  # when the kubelet was first seen
    # directories of Allocate responses that the kubelet's checkpoint may not contain yet
    answered: set[str] = field(init=False, default_factory=set)
    # the Allocate call that probably follows the last GetPreferredAllocation, and its caller
    expected_call: tuple[tuple[str, frozenset[str], float], Caller] | None = field(
        init=False, default=None
    )
    last_uid: str = field(init=False, default="")  # of the pod that was last seen in admission
    decided: ModeDecision = field(init=False)
    # the mode that the next agent must continue with, which is None until the node was read once
    saved_mode: EffectiveMode | None = field(init=False, default=None)
    # the evidence that another plugin serves the node
    other_plugin: str | None = field(init=False, default=None)
    resources: tuple[str, ...] = field(init=False, default=())  # registered with the kubelet
    # the expected memory for which the kubelet was sent device IDs
    expected: ExpectedMemory = field(init=False, default_factory=dict)
    # when the node was first seen closed for a change of mode
    closed_since: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.decided = ModeDecision(self.node_config.effective_mode, ())

    def apply_node(self, node: Node | None) -> bool:
        """Store the node. Return whether more than its resourceVersion has changed."""
        before, self.node = self.node, node
        return before is None or node is None or unversioned(before) != unversioned(node)

    def configure(self, configuration: Configuration) -> None:
        self.configuration = configuration
        read_again(self.pods, configuration)

    def record_listing(self, listing: Listing | None, epoch: float, *, settled: bool) -> None:
        """Record the kubelet's list. ``listing`` is None if the kubelet did not answer.

        ``settled`` is False while a kubelet that has just started may still be admitting its pods.
        """
        if self.kubelet_epoch not in (0.0, epoch):
            # The checkpoint contains all responses that the previous kubelet has not lost.
            self.answered.clear()
            self.once_listed = frozenset()
        self.kubelet_epoch = epoch
        self.listing_complete = settled and listing is not None
        if listing is not None:
            self.listing = listing
            self.once_listed = frozenset(self.once_listed & self.pods.keys() | listing.keys())

    def pod_of(self, pod_devices: PodDevices) -> KnownPod | None:
        """Return the pod of a row, or None if it is unknown or a newer pod has its name."""
        pod = self.pods.get(pod_devices.key)
        return pod if pod is not None and pod.uid == pod_devices.pod_uid else None

    def gpus(self, pod_devices: PodDevices, container: str, pod: KnownPod | None) -> frozenset[str]:
        """Return the UUIDs of a container's GPUs. ``pod`` is None for an unknown pod.

        A container that inherits the IDs of an init container may get IDs of fewer GPUs than it
        requests, because the kubelet hands them on in any order. The result then contains as many
        of the pod's GPUs as the container requests.
        """
        held = pod_devices.container_gpus.get(container, frozenset())
        count = pod.shared_gpus if pod is not None and self.node_config.mode.shared else 0
        whole = not count or len(held) == count
        return held if whole else frozenset(sorted(pod_devices.gpus)[:count])

    def shares(self, pod_devices: PodDevices, container: str) -> tuple[GpuShare, ...]:
        """Return a container's share of each of its GPUs, sorted by index.

        The amounts come from the pod's specification. The container's IDs may be incomplete,
        because the kubelet allocates memory and compute one after the other. Only the amounts of
        an unknown pod come from its IDs.
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
                units, percent = (
                    len(pod_devices.container_ids(container, resource).get(gpu.uuid, ()))
                    for resource in (GPU_MEMORY, GPU_CORE)
                )
                mib = units * pod_devices.unit_mib
            shares.append(GpuShare(gpu.uuid, gpu.index, mib, percent))
        return tuple(shares)

    def directories(self) -> set[str]:
        """Return the names of all allocation directories that containers may use.

        These include directories of containers whose devices the kubelet has lost.
        """
        own = {
            directory_name(pod.uid, container.name)
            for pod in self.pods.values()
            if pod.alive
            for container in pod.containers
        }
        return own | self.device_table.directories()

    def unit_mib(self, pod: KnownPod | None) -> int:
        """Return a pod's memory unit, or the node's unit for a pod without a unit of its own."""
        own = pod.own_unit_mib if pod is not None else 0
        return own or self.node_config.effective_mode.unit_mib

    def new_row(self, uid: str, key: str, pod: KnownPod | None, since_ns: int = 0) -> PodDevices:
        """Return a row without devices. For an unknown pod, ``key`` is "" and ``pod`` is None."""
        namespace, _, name = key.partition("/")
        group = pod.trust_group if pod is not None else self.trust_group(namespace)
        unit, mode = self.unit_mib(pod), self.node_config.mode
        row = PodDevices(uid, namespace, name, unit, mode, group, since_ns, identified=bool(key))
        if pod is None or pod.request is None or pod.shared_gpus <= 1:
            return row
        percent = pod.request.shape.percent
        return msgspec.structs.replace(row, least_units=pod.units_per_gpu, least_percent=percent)

    def trust_group(self, namespace: str) -> str:
        return self.configuration.trust_group(Pod(metadata=ObjectMeta(namespace=namespace)))

    def expect(self, resource: str, ids: Iterable[str], caller: Caller) -> None:
        self.expected_call = (resource, frozenset(ids), self.kubelet_epoch), caller
        self.last_uid = caller.uid

    def expected_caller(self, resource: str, ids: Iterable[str], epoch: float) -> Caller | None:
        """Return the caller for which this ``Allocate`` call was expected, or None if it was not.

        The result is also None if the caller's pod no longer exists.
        """
        if self.expected_call is None:
            return None
        call, caller = self.expected_call
        if call != (resource, frozenset(ids), epoch):
            return None
        now = self.pods.get(caller.key)
        known = caller.pod is None or (now is not None and now.uid == caller.uid and now.alive)
        return caller if known else None
