"""Stores the ResourceClaims for gputile's GPUs, and turns their allocations into bookings.

kube-scheduler writes these allocations, and counts them itself. The ledger follows: it has a booking under the claim's
UID as long as the claim has an allocation.
"""

from collections.abc import Iterator

from gputile.api.core import Pod
from gputile.api.resource_claims import AllocatedDevice, ResourceClaim, claims_of, gpu_index
from gputile.core.devices.allocation import Allocation, GpuShare
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB, asks_for_gpus
from gputile.core.devices.inventory import Gpu
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.node_info import NodeInfo


class Claims:
    """The latest version of each claim that requests, or has, GPUs of gputile."""

    def __init__(self) -> None:
        self._by_uid: dict[str, ResourceClaim] = {}
        self._uids: dict[str, str] = {}  # by namespace/name

    def copy(self) -> "Claims":
        twin = Claims()
        twin._by_uid, twin._uids = self._by_uid.copy(), self._uids.copy()
        return twin

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def uids(self) -> list[str]:
        return list(self._by_uid)

    def all(self) -> list[ResourceClaim]:
        return list(self._by_uid.values())

    def get(self, uid: str) -> ResourceClaim | None:
        return self._by_uid.get(uid)

    def put(self, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        if not asks_for_gpus(claim) and not claim.gpus:
            self.drop(uid)
            return
        self._by_uid[uid] = claim
        self._uids[claim.key] = uid

    def drop(self, uid: str) -> None:
        claim = self._by_uid.pop(uid, None)
        if claim is not None and self._uids.get(claim.key) == uid:
            del self._uids[claim.key]

    def of_pod(self, pod: Pod) -> Iterator[ResourceClaim]:
        """Yield the known GPU claims of the pod, in the order in which kube-scheduler allocates them."""
        for name in claims_of(pod):
            uid = self._uids.get(f"{pod.metadata.namespace}/{name}")
            if uid is not None:
                yield self._by_uid[uid]


def claim_node(claim: ResourceClaim) -> str:
    """Return the node of an allocated claim, whose pool has the name of the node; "" without an allocation."""
    return next((each.pool for each in claim.gpus), "")


def claim_booking(claim: ResourceClaim, node_info: NodeInfo | None, trust_group: str) -> Booking | None:
    """Return the booking of an allocated claim; None if it holds no GPU (devices with admin access do not count).

    ``node_info`` is that of ``claim_node``. If the node does not have one of the devices, the booking has no GPUs.
    """
    node, held = claim_node(claim), [each for each in claim.gpus if not each.admin_access]
    if not held:
        return None
    gpus = {gpu.index: gpu for gpu in node_info.inventory.gpus} if node_info is not None else {}
    unknown = [f"{each.pool}/{each.device}" for each in held if each.pool != node or gpu_index(each.device) not in gpus]
    allocation, problem = None, ""
    if unknown:
        problem = f"it is allocated {', '.join(unknown)}, which node {node} does not have"
    else:
        mode = node_info.mode.value if node_info is not None and node_info.mode is not None else ""
        shares = tuple(_share(each, gpus[gpu_index(each.device)]) for each in held)
        whole = any(each.share_id is None for each in held)
        allocation = Allocation(shares, {}, CLAIM_UNIT_MIB, mode=mode, whole=whole)
    return Booking(
        uid=claim.metadata.uid,
        namespace=claim.metadata.namespace,
        name=claim.pods[0].name if claim.pods else claim.metadata.name,
        node=node,
        trust_group=trust_group,
        allocation=allocation,
        problem=problem,
        asked_mib=sum(each.mib for each in held),
    )


def _share(device: AllocatedDevice, gpu: Gpu) -> GpuShare:
    if device.share_id is None:
        return GpuShare(gpu.uuid, gpu.index, gpu.mib, 100)
    return GpuShare(gpu.uuid, gpu.index, device.mib, device.percent)
