"""Says which containers use a claim, and what existing tools are told of a pod with claims (B9)."""

from collections.abc import Iterator

import msgspec

from gputile.api.core import Container, Pod
from gputile.api.well_known import ALLOCATION_ANNOTATION, GPUSHARE_ASSIGNED
from gputile.core.devices.allocation import Allocation, Chosen, GpuShare, binding_annotations
from gputile.core.devices.inventory import advertised_units
from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.claims.prepared_claim import PreparedClaim
from gputile.node.agent.differences import Correction


def containers_of(pod: Pod) -> Iterator[tuple[Container, Phase, frozenset[str]]]:
    """Yield the containers of a pod that use claims, with the names of these in their namespace."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    names = {each.name: each.resource_claim_name or made.get(each.name, "") for each in pod.spec.resource_claims}
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        phase = Phase.APP
        if container in pod.spec.init_containers:
            phase = Phase.SIDECAR if container.restart_policy == "Always" else Phase.INIT
        if claims := frozenset(names.get(each.name, "") for each in container.resources.claims):
            yield container, phase, claims


def claim_corrections(state: AllocationState) -> list[Correction]:
    """Return the annotations that existing tools read of pods with claims, where they are missing or others."""
    claims: dict[str, list[PreparedClaim]] = {}
    for each in state.claims.values():
        claims.setdefault(each.owner, []).append(each)
    found = []
    for of_pod in claims.values():
        pod = state.pod_of(of_pod[0])
        if pod is None or not pod.alive or any(each.whole for each in of_pod):
            continue
        wanted = _annotations(state, pod.pod, of_pod)
        if any(pod.pod.metadata.annotations.get(name) != text for name, text in wanted.items()):
            found.append(Correction(pod, wanted))
    return found


def _annotations(state: AllocationState, pod: Pod, claims: list[PreparedClaim]) -> dict[str, str | None]:
    containers = {
        container.name: _together([share for each in claims if each.claim in names for share in each.shares])
        for container, _, names in containers_of(pod)
    }
    unit, since = claims[0].unit_mib, min(each.since_ns for each in claims)
    gpus = _together([share for each in claims for share in each.shares])
    there = (state.node_config.gpu(share.uuid) for share in gpus)
    chosen = tuple(Chosen(gpu, advertised_units(gpu, unit)) for gpu in there if gpu is not None)
    written = binding_annotations(Allocation(gpus, containers, unit, assumed_ns=since), chosen, pod)
    if GPUSHARE_ASSIGNED in written:
        written[GPUSHARE_ASSIGNED] = "true"
    return {name: text for name, text in written.items() if name != ALLOCATION_ANNOTATION}


def _together(shares: list[GpuShare]) -> tuple[GpuShare, ...]:
    found: dict[str, GpuShare] = {}
    for share in shares:
        before = found.get(share.uuid)
        mib, percent = (before.mib, before.percent) if before is not None else (0, 0)
        found[share.uuid] = msgspec.structs.replace(
            share, mib=mib + share.mib, percent=min(100, percent + share.percent)
        )
    return tuple(sorted(found.values(), key=lambda share: share.index))
