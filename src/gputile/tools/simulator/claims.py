"""Allocates pods' ResourceClaims as kube-scheduler would, and reports claims that it cannot judge.

For each request in turn, kube-scheduler allocates the first GPU of a node that fits, in the order
of GPU indices. It also evaluates fields that are not evaluated here, such as selectors. A claim
with such a field is never reported as fitting.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from gputile.api.core import ObjectMeta, Pod, PodResourceClaimStatus, ResourceList
from gputile.api.resource_claims import (
    CORES,
    MEMORY,
    PODS,
    RESOURCE_API,
    AllocatedDevice,
    ClaimAllocation,
    ClaimConsumer,
    DeviceAllocation,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    device_name,
)
from gputile.api.well_known import DRIVER, GPU_CLASS, SHARE_CLASS
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB, parse_claim
from gputile.core.devices.request import Request, RequestError, RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import HostResources, host_request
from gputile.core.ledger.booking import claim_node
from gputile.core.refusal import FitRule, Refusal
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.core.scheduling.pod_filter import on_either_mode
from gputile.tools.simulator.fields import Json
from gputile.tools.simulator.manifests import Manifest, make_uid

BOTH_WAYS = (
    "it asks for GPUs by claims and by extended resources, and no node gives its GPUs by both"
)


class _ClaimTemplateSpec(msgspec.Struct):
    spec: ResourceClaimSpec


class _ClaimTemplate(msgspec.Struct):
    spec: _ClaimTemplateSpec


@dataclass(slots=True)
class KnownClaims:
    """A scenario's ResourceClaims, and the claim specs of its templates, by "namespace/name"."""

    claims: dict[str, ResourceClaim] = field(default_factory=dict)
    templates: dict[str, ResourceClaimSpec] = field(default_factory=dict)

    def add(self, manifest: Manifest) -> None:
        """Add an object if it is a ResourceClaim or a ResourceClaimTemplate.

        Raises:
            ManifestError: a field has the wrong type.
        """
        if manifest.api_version != RESOURCE_API:
            return
        namespace, name = manifest.namespaced_name
        key = f"{namespace}/{name}"
        if manifest.kind == "ResourceClaimTemplate":
            self.templates[key] = manifest.decode(_ClaimTemplate).spec.spec
        elif manifest.kind == "ResourceClaim":
            claim = manifest.decode(ResourceClaim)
            self.claims[key] = claim if manifest.stored else _new(namespace, name, claim.spec)

    def release(self, nodes: Collection[str]) -> None:
        """Deallocate the claims that are allocated on ``nodes``, whose pods are placed again."""
        for key, claim in self.claims.items():
            if claim_node(claim) in nodes:
                self.claims[key] = msgspec.structs.replace(claim, status=ResourceClaimStatus())

    def why_not(self, namespace: str, named: Json) -> str:
        """Return why ``named``, an entry of ``spec.resourceClaims``, cannot be judged, or ""."""
        name = named.get("resourceClaimName")
        if name:
            claim, kind = self.claims.get(f"{namespace}/{name}"), "ResourceClaim"
        else:
            name, kind = named.get("resourceClaimTemplateName"), "ResourceClaimTemplate"
            spec = self.templates.get(f"{namespace}/{name}")
            claim = _new(namespace, str(name), spec) if spec is not None else None
        if claim is None:
            said = f"there is no {kind} {namespace}/{name} of {RESOURCE_API} to judge"
            return f"{said}: name its file by -f too, or ignore it by --ignore-unknown"
        return unjudged(claim)

    def made_for(self, pod: Pod) -> tuple[Pod, list[ResourceClaim]]:
        """Create the pod's missing claims from their templates.

        Returns the pod with their names in its status, and the new claims.
        """
        made = {each.name for each in pod.status.resource_claim_statuses}
        claims, statuses = [], list(pod.status.resource_claim_statuses)
        for each in pod.spec.resource_claims:
            spec = self.templates.get(
                f"{pod.metadata.namespace}/{each.resource_claim_template_name}"
            )
            if spec is not None and each.name not in made:
                claims.append(
                    _new(pod.metadata.namespace, f"{pod.metadata.name}-{each.name}", spec)
                )
                name = claims[-1].metadata.name
                statuses.append(PodResourceClaimStatus(name=each.name, resource_claim_name=name))
        status = msgspec.structs.replace(pod.status, resource_claim_statuses=tuple(statuses))
        return msgspec.structs.replace(pod, status=status), claims


def _new(namespace: str, name: str, spec: ResourceClaimSpec) -> ResourceClaim:
    uid = make_uid("ResourceClaim", namespace, name)
    return ResourceClaim(metadata=ObjectMeta(namespace=namespace, name=name, uid=uid), spec=spec)


def unjudged(claim: ResourceClaim) -> str:
    """Return why a claim cannot be judged here, or why it is invalid; "" if it can be judged."""
    before = f"claim {claim.metadata.name}: spec.devices"
    devices = claim.spec.devices
    if not devices.requests:
        return f"{before}.requests: it asks for no device"
    for request in devices.requests:
        where = f"{before}.requests[{request.name}]"
        if request.exactly is None:
            return (
                f"{where}: which alternative it gets is kube-scheduler's to choose, and is not "
                f"judged here"
            )
        if request.exactly.device_class_name not in (SHARE_CLASS, GPU_CLASS):
            return (
                f"{where}: devices of other drivers are allocated by kube-scheduler, and are "
                f"not judged here"
            )
        if request.exactly.selectors:
            return f"{where}.selectors: they are evaluated by kube-scheduler, and not here"
    for constraint in devices.constraints:
        concerned = len(constraint.requests or devices.requests)
        if constraint.distinct_attribute != f"{DRIVER}/uuid" or concerned != 1:
            return (
                f"{before}.constraints: only a distinctAttribute {DRIVER}/uuid of one request "
                f"is judged here"
            )
    try:
        parse_claim(claim)
    except RequestError as error:
        return str(error)
    return ""


def allocate_claims(
    engine: PlacementEngine, pod: Pod, node: str
) -> list[ResourceClaim] | Refusal[FitRule]:
    """Return the pod's claims that kube-scheduler would allocate on the node, or why it cannot.

    Temporary changes of the ledger are undone.

    Raises:
        RequestError: no GPU can ever serve a claim, or serving it would bypass the memory
            accounting.
    """
    claims, allocated = list(engine.ledger.claims.of_pod(pod)), []
    try:
        for claim in claims:
            others = [each.name for each in claim.pods if each.uid != pod.metadata.uid]
            if others:
                text = (
                    f"claim {claim.metadata.name} is reserved for pod {others[0]}, and a claim "
                    f"is for one pod"
                )
                return Refusal(FitRule.MODE, text)
            if claim.status.allocation is None:
                found = _allocated(engine, claim, pod, node)
                if isinstance(found, Refusal):
                    return found
                allocated.append(found)
            elif claim_node(claim) != node:
                return Refusal(
                    FitRule.MODE,
                    f"claim {claim.metadata.name} is allocated on node {claim_node(claim)}",
                )
        return allocated
    finally:
        for claim in claims:
            engine.ledger.apply_claim(claim)


def _allocated(
    engine: PlacementEngine, claim: ResourceClaim, pod: Pod, node: str
) -> ResourceClaim | Refusal[FitRule]:
    results: list[AllocatedDevice] = []
    found, host = claim, host_request(pod)
    for asked in parse_claim(claim):
        decision = _first_fit(engine, asked, host, node)
        if isinstance(decision, Refusal):
            return decision
        results += _results(decision, asked)
        status = ResourceClaimStatus(
            allocation=ClaimAllocation(devices=DeviceAllocation(results=tuple(results))),
            reserved_for=(
                ClaimConsumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid),
            ),
        )
        found = msgspec.structs.replace(claim, status=status)
        engine.ledger.apply_claim(found)
    return found


def _first_fit(
    engine: PlacementEngine, shape: Shape, host: HostResources, node: str
) -> Decision | Refusal[FitRule]:
    refusals: list[Refusal[FitRule]] = []
    for request in claim_requests(shape, host):
        decision = engine.decide(request, node, 0)
        if isinstance(decision, Decision):
            return decision
        refusals.append(decision)
    return max(refusals, key=lambda each: each.rule)


def claim_requests(shape: Shape, host: HostResources) -> Sequence[Request]:
    """Return the requests that a shape makes; they may differ by node mode."""
    return [Request(each, CLAIM_UNIT_MIB, (), host) for each in on_either_mode(shape)]


def _results(decision: Decision, shape: Shape) -> Iterator[AllocatedDevice]:
    for gpu in decision.allocation.gpus if decision.allocation is not None else ():
        shared = shape.kind is RequestKind.SHARED
        amounts: ResourceList = {MEMORY: f"{gpu.mib}Mi", CORES: str(gpu.percent), PODS: "1"}
        yield AllocatedDevice(
            driver=DRIVER,
            pool=decision.node,
            device=device_name(gpu.index),
            share_id="simulated" if shared else None,
            consumed_capacity=amounts if shared else {},
        )
