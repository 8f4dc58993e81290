"""Puts every device ID under the pod that the kubelet says has it: what was assumed at ``Allocate`` is made certain.

A holding may have been answered under a stand-in (nobody could be asked at the time, or a static pod that the API
server did not know yet) or, rarely, under the name's former owner: a pod that was deleted by force and created again
while the watch lagged behind. Only the label changes; the IDs, and the directory that the container was given, stay.
"""

from collections.abc import Mapping

import msgspec

from gputile.api.well_known import MIG_PREFIX
from gputile.core.devices.request import Phase
from gputile.node.agent.advertise.node_config import MODE_RESOURCES, NodeConfig
from gputile.node.agent.allocate.device_ids import DeviceIdError, by_card
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.known_pods import KnownPod
from gputile.node.agent.allocate.pod_devices import ContainerDevices, PodDevices, directory_name
from gputile.node.agent.reconcile.listing import ListedPod, Listing


def sync_with_listing(
    listing: Listing, pods: Mapping[str, KnownPod], holdings: DeviceTable, setup: NodeConfig, now_ns: int
) -> list[PodDevices]:
    """Bring ``holdings`` in line with the listing, and return those that changed."""
    changed: dict[str, PodDevices] = {}
    for key, listed in listing.items():
        pod = pods.get(key)
        if pod is None or not pod.alive:
            continue
        for container, resource, ids in listed.parts():
            held = holdings.get(pod.uid)
            part = held.part(container, resource) if held else None
            if (part is not None and frozenset(part.ids) == ids) or not _ours(resource, ids):
                continue
            holding = _take_over(listing, listed, pod, container, resource, ids, holdings, setup, now_ns)
            holdings.put(holding)
            changed[holding.uid] = holding
    return list(changed.values())


def holding_for(
    uid: str, pod: KnownPod | None, key: str, setup: NodeConfig, trust_group: str, now_ns: int
) -> PodDevices:
    """Return an empty holding for a pod, or for the stand-in ``uid`` where ``pod`` is None."""
    namespace, _, name = key.partition("/")
    unit = pod.request.unit_mib if pod and pod.request else setup.in_force.unit_mib
    mode, identified = setup.mode.value, bool(key)
    return PodDevices(uid, namespace, name, unit, mode, trust_group, now_ns, identified=identified)


def with_part(holding: PodDevices, part: ContainerDevices, setup: NodeConfig) -> PodDevices:
    """Return ``holding`` with ``part``, and the UUIDs of the cards that it is on."""
    holding = holding.replaced(part)
    cards = {card.index: card.uuid for card in setup.inventory.cards if card.index in holding.indices}
    return msgspec.structs.replace(holding, cards=cards | holding.cards)


def _take_over(
    listing: Listing,
    listed: ListedPod,
    pod: KnownPod,
    container: str,
    resource: str,
    ids: frozenset[str],
    holdings: DeviceTable,
    setup: NodeConfig,
    now_ns: int,
) -> PodDevices:
    own = holdings.get(pod.uid) or holding_for(pod.uid, pod, pod.key, setup, pod.trust_group, now_ns)
    directory, mounts = directory_name(pod.uid, container), None
    for former in holdings.holders(resource, ids):
        other = listing.get(former.key)
        if former.key != listed.key and other is not None and other.has(resource, ids):
            continue  # the kubelet has given them to both
        for part in former.parts:
            another = former.uid != own.uid or part.phase is not Phase.INIT
            if part.resource == resource and frozenset(part.ids) == ids and another:
                directory, mounts = part.directory, part.mounts
        if former.uid == own.uid:
            continue
        if former.key == listed.key:  # the same pod under a stand-in, or mistaken for the former one of its name
            for part in former.parts:
                if own.part(part.container, part.resource) is None:
                    own = with_part(own, part, setup)
            holdings.drop(former.uid)
        else:
            holdings.keep(former.without(resource, ids))
    request = pod.part(container)
    phase = request.phase if request else Phase.APP
    return with_part(own, ContainerDevices(container, phase, resource, tuple(sorted(ids)), directory, mounts), setup)


def _ours(resource: str, ids: frozenset[str]) -> bool:
    if resource not in MODE_RESOURCES and not resource.startswith(MIG_PREFIX):
        return False
    try:
        return bool(by_card(ids))
    except DeviceIdError:
        return False
