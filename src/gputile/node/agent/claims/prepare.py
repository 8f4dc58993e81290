"""Decides what a prepared claim gets, and how its pod is annotated for existing tools (B9).

kube-scheduler has allocated the claim's devices. The checks here find what kube-scheduler cannot
know: a newer claim of the same name, an allocation that is forged or older than the node's mode,
and GPUs that no longer exist. The kubelet retries a refused claim.
"""

from collections.abc import Iterator

import msgspec

from gputile.api.core import Container, Pod
from gputile.api.resource_claims import CORES, MEMORY, AllocatedDevice, ResourceClaim
from gputile.api.well_known import ALLOCATION_ANNOTATION, Mode
from gputile.core.devices.allocation import Allocation, GpuShare
from gputile.core.devices.inventory import CORE_PERCENT
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation import AllocateAnswer, environment
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.claims.slices import device_named
from gputile.node.agent.device_table import Limits, PreparedClaim
from gputile.node.agent.differences import Correction, annotations_of
from gputile.node.agent.node_config import MigDevice, NodeConfig


class ClaimRefused(Exception):
    """The claim cannot be prepared now. The text appears in an event of the pod."""


def prepared_claim(
    state: AllocationState, claim: ResourceClaim, node: str, now_ns: int
) -> PreparedClaim:
    """Return the row of a claim in the device table. ``with_containers`` adds the container.

    Raises ClaimRefused if a rule is broken. The error states the rule.
    """
    config, meta = state.node_config, claim.metadata
    if not config.effective_mode.claims:
        raise ClaimRefused("this node offers its GPUs as extended resources, not to claims")
    if config.withheld is not None:
        raise ClaimRefused(config.withheld)
    if len(claim.pods) != 1:
        raise ClaimRefused(
            f"claim {claim.key} is reserved for {len(claim.pods)} pods, but must be for exactly one"
        )
    if not claim.gpus:
        raise ClaimRefused(f"no GPU is allocated to claim {claim.key}")
    of_requests = [_share(config, result, node) for result in claim.gpus]
    shares = _sum_by_gpu(of_requests)
    for share in shares:
        gpu = config.gpu(share.uuid) if config.mode.shared else None
        fits = gpu is not None and share.mib <= gpu.mib and share.percent <= CORE_PERCENT
        if share not in of_requests and not fits:
            raise ClaimRefused(f"GPU {share.index} is allocated to the claim twice")
    pod = claim.pods[0]
    row = PreparedClaim(
        meta.uid,
        meta.namespace,
        pod.name,
        config.effective_mode.unit_mib,
        config.mode,
        state.trust_group(meta.namespace),
        now_ns,
        claim=meta.name,
        owner=pod.uid,
        shares=shares,
    )
    return row.used_by("", Phase.APP)


def claim_of(state: AllocationState, uid: str, limits: Limits) -> PreparedClaim:
    """Return the row of a claim that an earlier agent has prepared, from the claim's ``limits``."""
    row = PreparedClaim(
        uid,
        limits.namespace,
        limits.pod,
        limits.unit_mib,
        limits.mode,
        state.trust_group(limits.namespace),
        limits.since_ns,
        claim=limits.claim,
        owner=limits.uid,
        shares=limits.gpus,
    )
    return row.used_by(limits.container, limits.phase)


def with_containers(state: AllocationState, row: PreparedClaim, pod: Pod | None) -> PreparedClaim:
    """Return a claim's row with the first container of ``pod`` that uses the claim.

    Raises ClaimRefused if the claim is not reserved for this pod, or if a container uses several
    claims.
    """
    if pod is None or pod.metadata.uid != row.owner:
        raise ClaimRefused(f"pod {row.key} with the UID {row.owner[:64]} no longer exists")
    others = {
        each.claim
        for each in state.claims.values()
        if each.owner == row.owner and each.uid != row.uid
    }
    users = [each for each in containers_of(pod) if row.claim in each[2]]
    for container, _, names in users:
        if both := sorted(names & others):
            raise ClaimRefused(
                f"container {container.name} uses the claims {row.claim} and {both[0]}, but would "
                "get the limits of only one: request both GPUs in one claim"
            )
    return row.used_by(users[0][0].name, users[0][1]) if users else row


def _share(config: NodeConfig, result: AllocatedDevice, node: str) -> GpuShare:
    if result.pool != node:
        raise ClaimRefused(f"device {result.device} belongs to node {result.pool}, not to {node}")
    if result.admin_access:
        raise ClaimRefused("gputile has no administrative access to GPUs: remove adminAccess")
    device = device_named(config, result.device)
    if device is None:
        raise ClaimRefused(f"device {result.device} no longer exists")
    if not device.healthy:
        raise ClaimRefused(f"device {result.device} is unhealthy")
    if isinstance(device, MigDevice) or not config.mode.shared:
        return GpuShare(device.uuid, device.index, device.mib, CORE_PERCENT)
    # A missing amount means the whole device, because an API server without shares stores no
    # amount.
    mib = result.mib if MEMORY in result.consumed_capacity else device.mib
    percent = least = 0  # 0 percent is no limit
    if config.mode is Mode.CORE_MEM:
        percent = result.percent if CORES in result.consumed_capacity else CORE_PERCENT
        least = 1
    if not 0 < mib <= device.mib or not least <= percent <= CORE_PERCENT:
        raise ClaimRefused(
            f"the allocation of {result.consumed_capacity} of device {result.device} is no part of "
            f"{device.mib} MiB and {CORE_PERCENT} % of compute"
        )
    return GpuShare(device.uuid, device.index, mib, percent)


def answer_of(config: NodeConfig, row: PreparedClaim, threads: int) -> AllocateAnswer:
    """Return the response for a claim's containers. For ``threads``, see ``environment``."""
    of_each = sum(share.mib for share in row.shares) // len(row.shares)
    uuids = tuple(share.uuid for share in row.shares)
    return AllocateAnswer(
        environment(config, uuids, row.shares, row.unit_mib, of_each, threads), row.directory, uuids
    )


def request_name(result: AllocatedDevice) -> str:
    """Return the name of the request for which a device was allocated.

    If the request has alternatives, ``result`` contains ``request/alternative``.
    """
    return result.request.partition("/")[0]


def containers_of(pod: Pod) -> Iterator[tuple[Container, Phase, frozenset[str]]]:
    """Yield a pod's containers that use claims, each with its phase and the names of the claims."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    names = {
        each.name: each.resource_claim_name or made.get(each.name, "")
        for each in pod.spec.resource_claims
    }
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        phase = Phase.APP
        if container in pod.spec.init_containers:
            phase = Phase.SIDECAR if container.restart_policy == "Always" else Phase.INIT
        if claims := frozenset(names.get(each.name, "") for each in container.resources.claims):
            yield container, phase, claims


def claim_corrections(state: AllocationState) -> list[Correction]:
    """Return a correction for each pod with claims whose annotations for existing tools are wrong.

    Pods with whole GPUs have no such annotations, because these tools show units of shared GPUs.
    """
    claims: dict[str, list[PreparedClaim]] = {}
    for each in state.claims.values():
        claims.setdefault(each.owner, []).append(each)
    found = []
    for of_pod in claims.values():
        pod = state.pod_of(of_pod[0])
        if pod is None or not pod.alive or not Mode(of_pod[0].mode).shared:
            continue
        wanted = _annotations(state, pod.pod, of_pod)
        if any(pod.pod.metadata.annotations.get(name) != text for name, text in wanted.items()):
            found.append(Correction(pod, wanted))
    return found


def _annotations(
    state: AllocationState, pod: Pod, claims: list[PreparedClaim]
) -> dict[str, str | None]:
    containers = {
        container.name: _sum_by_gpu(
            [share for each in claims if each.claim in names for share in each.shares]
        )
        for container, _, names in containers_of(pod)
    }
    unit, since = claims[0].unit_mib, min(each.since_ns for each in claims)
    gpus = _sum_by_gpu([share for each in claims for share in each.shares])
    allocation = Allocation(gpus, containers, unit, assumed_ns=since)
    written = annotations_of(allocation, state.node_config, pod)
    return {name: text for name, text in written.items() if text and name != ALLOCATION_ANNOTATION}


def _sum_by_gpu(shares: list[GpuShare]) -> tuple[GpuShare, ...]:
    found: dict[str, GpuShare] = {}
    for share in shares:
        before = found.get(share.uuid)
        mib, percent = (before.mib, before.percent) if before is not None else (0, 0)
        found[share.uuid] = msgspec.structs.replace(
            share, mib=mib + share.mib, percent=percent + share.percent
        )
    return tuple(sorted(found.values(), key=lambda share: share.index))
