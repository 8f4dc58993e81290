"""Defines the agent's state of the node, on which each of its decisions is based.

It is plain data: pods, devices, what is advertised, and which call the kubelet is expected to make next. Functions that
decide get the state as an argument; they never wait or do I/O.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, NodeCondition, ObjectMeta, Pod, unversioned
from gputile.api.well_known import GPU_CORE, GPU_MEMORY
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.request import ContainerRequest
from gputile.node.agent.device_table import (
    DeviceTable,
    KubeletEntry,
    Limits,
    Listing,
    PodDevices,
    PreparedClaim,
    directory_name,
    gpus_of,
)
from gputile.node.agent.known_pods import KnownPod, PodCache, read_again
from gputile.node.agent.node_config import EffectiveMode, NodeConfig


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """The mode that is in force from now on, and conditions that report it, or why the requested mode is not in force.

    ``closing`` is True if the node must take no new pods because a change of mode is about to happen.
    """

    effective_mode: EffectiveMode
    conditions: tuple[NodeCondition, ...]
    closing: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedMemory:
    """The memory of a GPU that pods have yet to receive: the number of IDs, and their worth in MiB."""

    ids: int = 0
    mib: int = 0


@dataclass(slots=True)
class Advertised:
    """What the node advertises now.

    ``decided`` is the decision in force. ``effective_mode`` is the mode that survives a restart: None until the node's
    labels were known once. ``other_plugin`` is the evidence that another plugin serves the node instead. ``resources``
    were advertised to the kubelet, with the IDs that pods were ``expected`` to get. ``mixed`` is True if a pod with
    another memory unit than the one in force holds devices. ``unsaved`` is True while the checkpoint is out of date.
    ``closed_since`` is when the node was first seen closed before a change of mode.
    """

    decided: ModeDecision
    effective_mode: EffectiveMode | None = None
    other_plugin: str | None = None
    resources: tuple[str, ...] = ()
    expected: Mapping[str, ExpectedMemory] = field(default_factory=dict)
    mixed: bool = True
    unsaved: bool = False
    closed_since: float | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The container for which the kubelet makes a call.

    ``key`` is the key of its pod. ``pod`` and ``request`` are None if the API server does not know the pod, such as a
    static pod without a mirror pod; ``request`` is also None if it is invalid. ``sure`` is True if nothing speaks
    against this container.
    """

    key: str
    container: str
    pod: KnownPod | None = None
    request: ContainerRequest | None = None
    sure: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedAllocation:
    """The ``Allocate`` call that most likely follows the last ``GetPreferredAllocation``, with the same caller.

    ``epoch`` is the epoch of the kubelet that made the call.
    """

    resource: str
    ids: frozenset[str]
    caller: Caller | None
    epoch: float


@dataclass(slots=True)
class KubeletStatus:
    """The state of the kubelet itself.

    ``settled`` is False until its list is complete: after its start it admits its pods one by one. ``epoch`` is when it
    was first seen. ``silent`` is True while it does not answer; ``listing`` is its latest list of pods.
    """

    settled: bool = False
    epoch: float = 0.0
    silent: bool = False
    listing: Listing = field(default_factory=dict)


@dataclass(slots=True)
class AdmissionProgress:
    """The call that is ``expected`` of the kubelet; ``last_uid`` is the UID of the pod last seen in admission.

    ``answered`` are the allocation directories of Allocate responses that the kubelet has yet to checkpoint.
    """

    expected: ExpectedAllocation | None = None
    last_uid: str = ""
    answered: set[str] = field(default_factory=set)


@dataclass(slots=True)
class AllocationState:
    """The agent's state of its node.

    ``pods`` are the pods bound to the node, by key; ``node`` is None until it was read. ``node_config`` is what the
    node offers, ``labels`` are the node's labels from which it was computed, and ``advertised`` is what was sent to the
    kubelet. ``device_table`` is derived from the following fields. ``written`` are the entries of the kubelet's
    checkpoint when it was last read, or what the kubelet lists while it cannot be read; ``unread`` is the reason why it
    cannot. ``records`` are the records of the allocation directories, by name; ``started`` are the directories whose
    containers were allowed to start. ``of_other_plugins`` are the device IDs that other plugins have registered, by
    resource, as JSON. ``claims`` are the prepared claims, by UID.
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
    admission: AdmissionProgress = field(init=False, default_factory=AdmissionProgress)
    advertised: Advertised = field(init=False)

    def __post_init__(self) -> None:
        self.advertised = Advertised(ModeDecision(self.node_config.effective_mode, ()))

    def apply_node(self, node: Node | None) -> bool:
        """Store the node (None if there is none); return whether more than its resourceVersion changed."""
        before, self.node = self.node, node
        return before is None or node is None or unversioned(before) != unversioned(node)

    def configure(self, configuration: Configuration) -> None:
        self.configuration = configuration
        read_again(self.pods, configuration)

    def take_over(
        self,
        records: Mapping[str, Limits],
        started: frozenset[str],
        effective_mode: EffectiveMode | None,
    ) -> None:
        """Take over the records of the previous agent. The kubelet may have yet to checkpoint its last responses."""
        self.records, self.started = dict(records), started
        self.admission.answered = records.keys() - started
        self.advertised.effective_mode = effective_mode

    def record_listing(self, listing: Listing | None, epoch: float, *, settled: bool) -> None:
        """Record the list of the kubelet with this ``epoch``; None if it did not answer."""
        if self.kubelet.epoch not in (0.0, epoch):  # responses to the previous kubelet are checkpointed by now, or lost
            self.admission.answered.clear()
        known = self.kubelet.listing if listing is None else listing
        self.kubelet = KubeletStatus(settled, epoch, silent=listing is None, listing=known)

    def pod_of(self, pod_devices: PodDevices) -> KnownPod | None:
        """Return the pod that has the devices; None if it is unknown or was replaced by a pod of the same name."""
        pod = self.pods.get(pod_devices.key)
        return pod if pod is not None and pod.uid == pod_devices.pod_uid else None

    def named_devices(self) -> list[PodDevices]:
        """Return the rows of one pod per name: of the pod that has the name now, or else of the latest one.

        When a pod was recreated with the same name, the devices of its predecessor may not be released yet.
        """
        found: dict[tuple[str, str], PodDevices] = {}
        for each in self.device_table:
            key = each.key, each.uid if each.uid in self.claims else ""
            other = found.get(key)
            if other is None or self._rank(other) < self._rank(each):
                found[key] = each
        return list(found.values())

    def _rank(self, pod_devices: PodDevices) -> tuple[bool, int]:
        return self.pod_of(pod_devices) is not None, pod_devices.since_ns

    def gpus(self, pod_devices: PodDevices, container: str, pod: KnownPod | None) -> frozenset[str]:
        """Return the UUIDs of a container's GPUs; ``pod`` is None if it is unknown."""
        return gpus_of(
            pod_devices, container, pod.shared_gpus if pod is not None and self.node_config.mode.shared else 0
        )

    def shares(self, pod_devices: PodDevices, container: str) -> tuple[GpuShare, ...]:
        """Return a container's share of each of its GPUs, sorted by index.

        The amounts are those in the pod's specification, since the container's IDs may be incomplete: the kubelet
        allocates the two resources one after the other. If the specification is unknown, the IDs determine the amounts.
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
                mib, percent = request.units * pod_devices.unit_mib // len(uuids), request.percent // len(uuids)
            else:
                mib = len(pod_devices.container_ids(container, GPU_MEMORY).get(gpu.uuid, ())) * pod_devices.unit_mib
                percent = len(pod_devices.container_ids(container, GPU_CORE).get(gpu.uuid, ()))
            shares.append(GpuShare(gpu.uuid, gpu.index, mib, percent))
        return tuple(shares)

    def directories(self) -> set[str]:
        """Return the names of all allocation directories that a container may use, even if the kubelet forgot them."""
        own = {
            directory_name(pod.uid, container.name)
            for pod in self.pods.values()
            if pod.request is not None and pod.alive
            for container in pod.request.containers
        }
        return own | self.device_table.directories()

    def unit_mib(self, pod: KnownPod | None) -> int:
        """Return the memory unit of a pod, which never changes; the unit in force if it is unknown."""
        own = pod.request.unit_mib if pod is not None and pod.request is not None else 0
        return own or self.node_config.effective_mode.unit_mib

    def new_row(self, uid: str, key: str, pod: KnownPod | None, since_ns: int = 0) -> PodDevices:
        """Return the row of a pod without devices; if the pod is unknown, ``key`` is "" and ``pod`` is None."""
        namespace, _, name = key.partition("/")
        group = pod.trust_group if pod is not None else self.trust_group(namespace)
        unit, mode = self.unit_mib(pod), self.node_config.mode.value
        known, identified = pod is not None, bool(key)
        return PodDevices(uid, namespace, name, unit, mode, group, since_ns, identified=identified, known=known)

    def trust_group(self, namespace: str) -> str:
        return self.configuration.trust_group(Pod(metadata=ObjectMeta(namespace=namespace)))

    def expect(self, resource: str, ids: Iterable[str], caller: Caller | None) -> None:
        self.admission.expected = ExpectedAllocation(resource, frozenset(ids), caller, self.kubelet.epoch)
        self.admission.last_uid = caller.pod.uid if caller is not None and caller.pod is not None else ""

    def expected(self, resource: str, ids: Iterable[str], epoch: float) -> ExpectedAllocation | None:
        """Return the expected allocation if this call matches it and its pod still exists; otherwise None."""
        found = self.admission.expected
        if found is None or (found.resource, found.ids, found.epoch) != (resource, frozenset(ids), epoch):
            return None
        asked = found.caller.pod if found.caller is not None else None
        now = self.pods.get(asked.key) if asked is not None else None
        gone = asked is not None and (now is None or now.uid != asked.uid or not now.alive)
        return None if gone else found

    def by_kubelet_uid(self) -> dict[str, KnownPod]:
        """Return the pods by the kubelet's UIDs and their own, which take precedence: users can forge mirrors."""
        pods = self.pods.values()
        return {pod.kubelet_uid: pod for pod in pods} | {pod.uid: pod for pod in pods}
