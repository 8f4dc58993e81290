"""The state that decides which container gets which device, and what the kubelet's list changes in it.

It is plain data. ``allocation`` decides the kubelet's calls ``GetPreferredAllocation`` and ``Allocate``,
``container_start`` decides ``PreStartContainer``, and ``reconciler`` a round of comparing. Each is given the state and
what happened, waits for nothing, reads nothing, and returns what is to be done.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node
from gputile.core.devices.request import Phase
from gputile.node.agent.advertise.node_config import NodeConfig
from gputile.node.agent.allocate.container_matcher import ContainerCandidate
from gputile.node.agent.allocate.device_stage import DeviceEvent
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.known_pods import KnownPod
from gputile.node.agent.allocate.pod_cache import PodCache
from gputile.node.agent.allocate.pod_devices import ContainerDevices, PodDevices, directory_name, gpus_of, with_devices
from gputile.node.agent.allocate.validation import AllocationRules
from gputile.node.agent.reconcile.listing import ListedPod, Listing

EXPECTED_FOR_S = 10.0  # between a preference and its Allocate the kubelet does nothing that takes time


@dataclass(frozen=True, slots=True)
class ExpectedAllocation:
    """The answer to the last ``GetPreferredAllocation``: the kubelet asks for these IDs next, most likely.

    ``at`` is the time of the answer on the monotonic clock, in seconds.
    """

    resource: str
    ids: frozenset[str]
    candidate: ContainerCandidate | None
    at: float

    def is_for(self, resource: str, ids: Iterable[str], now: float) -> bool:
        """Return whether an ``Allocate`` of ``ids`` follows, so that its pod is known already."""
        return (self.resource, self.ids) == (resource, frozenset(ids)) and now - self.at < EXPECTED_FOR_S


@dataclass(slots=True)
class AllocationState:
    """The node as its agent knows it. ``pods`` are the pods bound to it, by key; ``node`` is None until it was seen.

    ``settled`` is unset while the kubelet has just started and lists its pods one after the other; ``listed`` are the
    keys of those that it has listed by then, and ``epoch`` is when it was first seen. ``silent`` is set while it lists
    nothing. ``last_uid`` is the pod that was last seen in admission.
    """

    configuration: Configuration
    node_config: NodeConfig
    device_table: DeviceTable
    pods: PodCache = field(default_factory=PodCache)
    labels: Mapping[str, str] = field(default_factory=dict)
    node: Node | None = None
    settled: bool = True
    epoch: float = 0.0
    listed: frozenset[str] = frozenset()
    silent: bool = False
    expected: ExpectedAllocation | None = None
    last_uid: str = ""

    def heard(self, listing: Listing | None, epoch: float, *, settled: bool) -> None:
        """Take note of which pods the kubelet of this ``epoch`` has come to; None where it does not say."""
        before = self.listed if epoch == self.epoch and not settled else frozenset()
        self.epoch, self.settled, self.listed = epoch, settled, before | (listing or {}).keys()
        self.silent = listing is None

    def still_to_come(self, key: str) -> bool:
        """Return whether the kubelet has just started, and has not come to the pod yet."""
        return not self.settled and key not in self.listed

    def is_uncertain(self, key: str) -> bool:
        """Return whether the kubelet does not say whether the pod has its devices."""
        return self.silent or self.still_to_come(key)

    def has_left(self, key: str, listing: Listing) -> bool:
        """Return whether a pod that the kubelet does not list is gone, and not only to be come to."""
        return key not in listing and not self.still_to_come(key)

    def pod_of(self, pod_devices: PodDevices) -> KnownPod | None:
        """Return the pod that has the devices; None where it is not known, or its name is another pod's by now."""
        pod = self.pods.get(pod_devices.key)
        return pod if pod is not None and pod.uid == pod_devices.uid else None

    def gpus(self, pod_devices: PodDevices, container: str, pod: KnownPod | None) -> tuple[int, ...]:
        """Return the indices of the GPUs that a container is on; ``pod`` is its own, where that is known."""
        return gpus_of(
            pod_devices, container, pod.shared_gpus if pod is not None and self.node_config.mode.shared else 0
        )

    def rules(self, device_table: DeviceTable | None = None) -> AllocationRules:
        """Return the rules by which pods get devices beside those of ``device_table``, by default of all pods."""
        beside = self.device_table if device_table is None else device_table
        return AllocationRules(self.node_config, beside, self.configuration.max_pods_per_gpu, self.is_uncertain)

    def absorb(self, former: PodDevices, pod: KnownPod, own: PodDevices) -> PodDevices:
        """Return ``own``, a pod's devices, with those that it was answered under another UID, which is forgotten."""
        for devices in former.devices:
            if own.container_devices(devices.container, devices.resource) is None:
                asked = pod.container_request(devices.container)
                known = msgspec.structs.replace(devices, phase=asked.phase) if asked else devices
                own = with_devices(own, known, self.node_config)
        self.device_table.drop(former.uid)
        return own

    def directories(self) -> set[str]:
        """Return the names of the allocation directories that containers may have, whatever the kubelet still knows."""
        own = {
            directory_name(pod.uid, container.name)
            for pod in self.pods.values()
            if pod.alive and pod.request is not None
            for container in pod.request.containers
        }
        return own | self.device_table.directories()

    def release(self, ids: Iterable[str], resource: str, listing: Listing | None, uid: str) -> None:
        """Forget the old owners of IDs that the kubelet offers or gives: it does so with free ones only.

        There is one exception. While the kubelet waits for an answer, a ``List`` that finds a pod gone makes it count
        the used IDs anew, without those that it is about to give (``UpdateAllocatedDevices`` in
        pkg/kubelet/cm/devicemanager). So what ``List`` still shows is kept, and everything of a living pod where
        ``List`` fails.

        Containers that were let start keep theirs even if the kubelet has forgotten them: it does after the loss of its
        checkpoint, and where it refuses a pod that another one had started and dies before it has told the API server.
        """
        free = set(ids)
        for pod_devices in self.device_table.holders(resource, free):
            if pod_devices.uid == uid:
                continue
            pod = self.pod_of(pod_devices)
            shown = listing.get(pod_devices.key) if listing is not None else None
            there = shown is not None or (pod_devices.identified and self.still_to_come(pod_devices.key))
            alive = pod.alive if pod is not None else there and pod_devices.key not in self.pods
            if not alive or (listing is not None and self.has_left(pod_devices.key, listing)):
                self.device_table.apply(pod_devices, DeviceEvent.POD_GONE)
            elif listing is not None and (event := self.loss(pod_devices)) is not None:
                nothing = ListedPod(pod_devices.namespace, pod_devices.name)
                self.device_table.apply(pod_devices, event, partial(_offered, shown or nothing, resource, free))

    def release_inits(self, free: Set[str], resource: str) -> None:
        """Forget that init containers which have not been let start were answered with IDs that the kubelet offers.

        No list shows them. A kubelet that offers their IDs has forgotten them, and asks for them anew.
        """
        forgotten = partial(_is_init_with, resource, free)
        for pod_devices in self.device_table.holders(resource, free):
            self.device_table.apply(pod_devices, DeviceEvent.UNLISTED, forgotten)

    def loss(self, pod_devices: PodDevices) -> DeviceEvent | None:
        """Return what it means that the kubelet does not count devices as the pod's; None if that is no news.

        A pod that runs has been admitted with all of its devices: those were given for good. One that the kubelet lists
        and that is not known has not gone: the API server may not have been heard yet, and its containers may run.
        """
        pod = self.pod_of(pod_devices)
        if pod is None:
            return DeviceEvent.POD_GONE if pod_devices.key in self.pods else DeviceEvent.UNLISTED
        return DeviceEvent.UNLISTED if pod.pod.status.phase != "Running" else None


def _offered(listed: ListedPod, resource: str, free: Set[str], devices: ContainerDevices) -> bool:
    """Return whether one of the devices is among the ``free`` ones, and the kubelet does not list them."""
    return devices.resource == resource and not free.isdisjoint(devices.ids) and not listed.has(resource, devices.ids)


def _is_init_with(resource: str, ids: Set[str], devices: ContainerDevices) -> bool:
    """Return whether the devices are an init container's, and one of them is among ``ids``."""
    return devices.phase is Phase.INIT and devices.resource == resource and not ids.isdisjoint(devices.ids)
