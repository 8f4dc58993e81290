"""Decides what a claim gets when the kubelet asks to prepare it: checks, limits and CDI device.

kube-scheduler has allocated the claim's devices and counted what others have of them. The checks here catch what it
cannot know: another claim of the same name, an allocation that was forged or is older than the node's mode, and GPUs
that have gone. A refusal is never for good, since the kubelet asks again.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from gputile.api.core import Pod
from gputile.api.resource_claims import CORES, MEMORY, AllocatedDevice, ResourceClaim
from gputile.api.well_known import Mode
from gputile.core.devices.allocation import GpuShare
from gputile.core.devices.inventory import CORE_PERCENT
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.answers import AllocateAnswer, Limits, environment
from gputile.node.agent.claims.pods import containers_of
from gputile.node.agent.claims.prepared_claim import PreparedClaim, PreparedDevice, row_devices
from gputile.node.agent.claims.slices import device_named
from gputile.node.agent.device_table import AllocationRecord
from gputile.node.agent.node_config import MigDevice, NodeConfig

CDI_VERSION: Final = "0.5.0"
CDI_KIND: Final = "gputile.io/claim"


class AskedClaim(NamedTuple):
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClaimRefused(Exception):
    """The claim cannot be prepared as things are; the text goes into the pod's events."""


def prepared_claim(
    state: AllocationState, claim: ResourceClaim | None, asked: AskedClaim, node: str, now_ns: int
) -> PreparedClaim:
    """Return what a claim gets of this node's GPUs; ``with_containers`` says for which containers.

    Raises:
        ClaimRefused: says which rule is broken.
    """
    config = state.node_config
    if claim is None or claim.metadata.uid != asked.uid or not asked.uid.replace("-", "").isalnum():
        raise ClaimRefused(f"claim {asked.key} with the UID {asked.uid[:64]} is not there any more")
    if not config.effective_mode.claims:
        raise ClaimRefused("this node gives its GPUs by extended resources, not by claims")
    if config.withheld is not None:
        raise ClaimRefused(config.withheld.text)
    if len(claim.pods) != 1:
        raise ClaimRefused(f"claim {asked.key} is reserved for {len(claim.pods)} pods; it has to be exactly one")
    if not claim.gpus:
        raise ClaimRefused(f"no GPU is allocated to claim {asked.key}")
    shares: dict[str, GpuShare] = {}
    for result in claim.gpus:
        share = _share(config, result, node)
        before = shares.get(share.uuid)
        if before is not None:
            share = _together(before, share, config, result)
        shares[share.uuid] = share
    pod = claim.pods[0]
    return PreparedClaim(
        asked.uid,
        asked.namespace,
        pod.name,
        config.effective_mode.unit_mib,
        config.mode.value,
        state.trust_group(asked.namespace),
        now_ns,
        row_devices(asked.uid, "", Phase.APP),
        claim=asked.name,
        owner=pod.uid,
        whole=not config.mode.shared,
        shares=tuple(sorted(shares.values(), key=lambda share: share.index)),
        results=tuple(PreparedDevice(each.request, each.device, (), each.share_id or "") for each in claim.gpus),
    )


def with_containers(state: AllocationState, row: PreparedClaim, pod: Pod | None) -> PreparedClaim:
    """Return the row of a claim with the container of its ``pod`` that uses it, the first of several.

    Raises:
        ClaimRefused: the pod is not the one that the claim is reserved for, or a container uses several claims.
    """
    if pod is None or pod.metadata.uid != row.owner:
        raise ClaimRefused(f"pod {row.key} with the UID {row.owner[:64]} is not there any more")
    others = {each.claim for each in state.claims.values() if each.owner == row.owner and each.uid != row.uid}
    users = [(container, phase, names) for container, phase, names in containers_of(pod) if row.claim in names]
    for container, _, names in users:
        if both := sorted(names & others):
            text = f"container {container.name} uses the claims {row.claim} and {both[0]}"
            raise ClaimRefused(f"{text}, and would have one's limits only: ask for both GPUs in one claim")
    name, phase = (users[0][0].name, users[0][1]) if users else ("", Phase.APP)
    return msgspec.structs.replace(row, devices=row_devices(row.uid, name, phase))


def check_room(state: AllocationState, row: PreparedClaim) -> None:
    """Refuse GPUs on which others hold too much for this claim.

    Raises:
        ClaimRefused: says which GPU, the amounts, and who holds them.
    """
    for share in row.shares:
        others = list(state.device_table.on(share.uuid, row.uid))
        names = ", ".join(sorted({each.key for each in others})) or "nobody"
        if row.whole:
            if others:
                raise ClaimRefused(f"GPU {share.index} is held by {names}")
            continue
        gpu = state.node_config.gpu(share.uuid)
        size = gpu.mib if gpu is not None else 0
        mib = sum(each.mib(share.uuid) for each in others)
        percent = sum(each.percent(share.uuid) for each in others)
        if mib + share.mib > size:
            text = f"GPU {share.index} has {size - mib} of {size} MiB left, and the claim takes {share.mib}"
            raise ClaimRefused(f"{text}; held by {names}")
        if percent + share.percent > CORE_PERCENT:
            text = f"GPU {share.index} has {CORE_PERCENT - percent} % of its compute left, and the claim takes"
            raise ClaimRefused(f"{text} {share.percent}; held by {names}")
        most = state.configuration.max_pods_per_gpu
        if len(others) >= most:
            raise ClaimRefused(f"GPU {share.index} is shared by {most} pods, the most that may: {names}")


def _share(config: NodeConfig, result: AllocatedDevice, node: str) -> GpuShare:
    if result.pool != node:
        raise ClaimRefused(f"device {result.device} is of node {result.pool}, and this is {node}")
    if result.admin_access:
        raise ClaimRefused("gputile gives no administrative access to GPUs: leave out adminAccess")
    device = device_named(config, result.device)
    if device is None:
        raise ClaimRefused(f"device {result.device} is not there any more")
    if not device.healthy:
        raise ClaimRefused(f"device {result.device} is unhealthy")
    if isinstance(device, MigDevice) or not config.mode.shared:
        return GpuShare(device.uuid, device.index, device.mib, CORE_PERCENT)
    # What a claim does not name it has all of: an API server without shares stores no amounts.
    mib = result.mib if MEMORY in result.consumed_capacity else device.mib
    percent = 0
    if config.mode is Mode.CORE_MEM:
        percent = result.percent if CORES in result.consumed_capacity else CORE_PERCENT
    if not 0 < mib <= device.mib or not 0 <= percent <= CORE_PERCENT:
        text = f"{result.consumed_capacity} of device {result.device} is no amount of {device.mib} MiB"
        raise ClaimRefused(f"the allocation of {text} and {CORE_PERCENT} % of compute")
    return GpuShare(device.uuid, device.index, mib, percent)


def _together(one: GpuShare, other: GpuShare, config: NodeConfig, result: AllocatedDevice) -> GpuShare:
    """Return what two requests of a claim have of one GPU."""
    gpu = config.gpu(one.uuid)
    mib, percent = one.mib + other.mib, one.percent + other.percent
    if not config.mode.shared or gpu is None or mib > gpu.mib or percent > CORE_PERCENT:
        raise ClaimRefused(f"the claim has device {result.device} twice")
    return GpuShare(one.uuid, one.index, mib, percent)


def answer_of(config: NodeConfig, row: PreparedClaim, threads: int) -> AllocateAnswer:
    """Return what the containers of a claim get; ``threads`` is the percentage of a GPU's threads in mode mps, or 0."""
    uuids = tuple(share.uuid for share in row.shares)
    of_each = sum(share.mib for share in row.shares) // len(row.shares)
    variables = environment(config, uuids, row.shares, row.unit_mib, of_each, threads)
    return AllocateAnswer(variables, row.directory, uuids)


def limits_of(row: PreparedClaim) -> Limits:
    container = row.devices[0].container
    return Limits(row.namespace, row.name, row.owner, container, row.mode, row.unit_mib, row.shares)


def allocation_record(row: PreparedClaim, mounts: Mapping[str, str]) -> AllocationRecord:
    """Return the record of the claim's allocation directory, which holds no device IDs."""
    pairs = tuple(mounts.items())
    return AllocationRecord({}, row.unit_mib, row.since_ns, pairs, row.key, row.owner)


def cdi_name(uid: str) -> str:
    """Return the name of the CDI device that carries a claim's limits into containers."""
    return f"{CDI_KIND}={uid}"


def cdi_file(uid: str, variables: Mapping[str, str], mounts: Iterable[tuple[str, str, bool]]) -> bytes:
    """Return the CDI file of a claim; a mount is its path in the container, on the host, and whether to read only."""
    edits = {
        "env": [f"{name}={value}" for name, value in variables.items()],
        "mounts": [
            {
                "hostPath": host,
                "containerPath": inside,
                "options": ["rbind", "rprivate", "ro" if read_only else "rw"],
            }
            for inside, host, read_only in mounts
        ],
    }
    device = {"name": uid, "containerEdits": edits}
    return msgspec.json.encode({"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": [device]})
