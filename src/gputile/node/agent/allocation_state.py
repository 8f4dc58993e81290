"""Keeps the node as its agent knows it: the state that every decision of the agent is made on.

It is plain data: pods, devices, what is advertised, and what the kubelet is expected to ask for. Functions that decide
are given the state; they wait for nothing and read nothing.
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
    """What is in force from now on, and what the node says about what is not.

    ``closing`` says that the node is to take no new pods: a change is about to happen.
    """

    effective_mode: EffectiveMode
    conditions: tuple[NodeCondition, ...]
    closing: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedMemory:
    """What pods are still to get of a GPU: IDs, and what these are worth in MiB."""

    ids: int = 0
    mib: int = 0


@dataclass(slots=True)
class Advertised:
    """What the node advertises now. ``decided`` is what is in force, ``other_plugin`` what shows that another
    plugin serves the node instead.

    ``effective_mode`` is what a restart goes on with: None until the node's labels were known once. The kubelet was
    told of ``resources``, with the IDs that pods were ``expected`` to get; ``mixed`` says that pods of several memory
    units hold some. ``unsaved`` is set while the checkpoint lacks it. ``closed_since`` is when the node was first seen
    to take no more pods before a change of mode.
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
    """The container that the kubelet asks for.

    ``pod`` and ``request`` are None for a pod of ``key`` that the API server does not know, such as a static pod that
    has no mirror yet, and for one whose request breaks a rule. ``sure`` says that nothing speaks against it.
    """

    key: str
    container: str
    pod: KnownPod | None = None
    request: ContainerRequest | None = None
    sure: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedAllocation:
    """The ``Allocate`` that most likely follows the last ``GetPreferredAllocation``, which has found its caller.

    ``epoch`` is that of the kubelet that asked.
    """

    resource: str
    ids: frozenset[str]
    caller: Caller | None
    epoch: float


@dataclass(slots=True)
class KubeletStatus:
    """What is known of the kubelet itself.

    ``settled`` is unset until it has listed its pods, which it does one after the other when it has just started;
    ``epoch`` is when it was first seen. ``silent`` is set while it lists nothing; ``listing`` is what it listed last.
    """

    settled: bool = False
    epoch: float = 0.0
    silent: bool = False
    listing: Listing = field(default_factory=dict)


@dataclass(slots=True)
class AdmissionProgress:
    """What the kubelet is expected to ask for next; ``last_uid`` is the pod that was last seen in admission.

    ``answered`` are the allocation directories that were answered and that the kubelet may still write down.
    """

    expected: ExpectedAllocation | None = None
    last_uid: str = ""
    answered: set[str] = field(default_factory=set)


@dataclass(slots=True)
class AllocationState:
    """The node as its agent knows it. ``pods`` are the pods bound to it, by key; ``node`` is None until it was seen.

    ``node_config`` is what the node advertises, by its ``labels`` as they were then, and ``advertised`` what the
    kubelet was told. ``device_table`` is derived from the rest: ``written`` is what the kubelet's checkpoint had when
    it was last read, or what the kubelet lists while ``unread`` says why it cannot be read, and ``records`` what the
    allocation directories tell, by name; ``started`` are those with which a container was let start.
    ``of_other_plugins`` are the device IDs that other plugins have registered, by resource, as JSON. ``claims`` are the
    prepared claims by their UIDs.
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
        """Store the node, None if it does not exist; return whether more than its version has changed."""
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
        """Take over the records of the previous agent, whose last answers may be on their way to the kubelet."""
        self.records, self.started = dict(records), started
        self.admission.answered = records.keys() - started
        self.advertised.effective_mode = effective_mode

    def record_listing(self, listing: Listing | None, epoch: float, *, settled: bool) -> None:
        """Record what the kubelet of this ``epoch`` lists; None if it did not answer."""
        if self.kubelet.epoch not in (0.0, epoch):  # what one before it was answered is written down by now, or lost
            self.admission.answered.clear()
        known = self.kubelet.listing if listing is None else listing
        self.kubelet = KubeletStatus(settled, epoch, silent=listing is None, listing=known)

    def pod_of(self, pod_devices: PodDevices) -> KnownPod | None:
        """Return the pod that has the devices; None where it is not known, or its name is another pod's by now."""
        pod = self.pods.get(pod_devices.key)
        return pod if pod is not None and pod.uid == pod_devices.pod_uid else None

    def named_devices(self) -> list[PodDevices]:
        """Return the devices of one pod of each name: of the pod that has the name now, else of the latest.

        While a pod that was made anew under its name is answered, its predecessor's devices may not be released yet.
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
        """Return the UUIDs of the GPUs that a container is on; ``pod`` is its own, where that is known."""
        return gpus_of(
            pod_devices, container, pod.shared_gpus if pod is not None and self.node_config.mode.shared else 0
        )

    def shares(self, pod_devices: PodDevices, container: str) -> tuple[GpuShare, ...]:
        """Return a container's share of each of the GPUs it is on, in the order of their indices.

        The amounts are those of the pod's specification. The container's IDs may be incomplete: the kubelet asks for
        its two resources one after the other. Where the specification is not known, they are what the IDs are worth.
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
        """Return the names of the allocation directories that containers may have, whatever the kubelet still knows."""
        own = {
            directory_name(pod.uid, container.name)
            for pod in self.pods.values()
            if pod.request is not None and pod.alive
            for container in pod.request.containers
        }
        return own | self.device_table.directories()

    def unit_mib(self, pod: KnownPod | None) -> int:
        """Return the memory unit that a pod counts in: its own for ever, or that in force where it is not known."""
        own = pod.request.unit_mib if pod is not None and pod.request is not None else 0
        return own or self.node_config.effective_mode.unit_mib

    def new_row(self, uid: str, key: str, pod: KnownPod | None, since_ns: int = 0) -> PodDevices:
        """Return the row of a pod that holds nothing yet; ``key`` is "" and ``pod`` is None while nobody knows it."""
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
        """Return what is expected if it is this, by the kubelet of this ``epoch``, for a pod that is not gone."""
        found = self.admission.expected
        if found is None or (found.resource, found.ids, found.epoch) != (resource, frozenset(ids), epoch):
            return None
        asked = found.caller.pod if found.caller is not None else None
        now = self.pods.get(asked.key) if asked is not None else None
        gone = asked is not None and (now is None or now.uid != asked.uid or not now.alive)
        return None if gone else found

    def by_kubelet_uid(self) -> dict[str, KnownPod]:
        """Return the pods by the UID that the kubelet has: no mirror, whose text users can write, is another pod."""
        pods = self.pods.values()
        return {pod.kubelet_uid: pod for pod in pods} | {pod.uid: pod for pod in pods}
