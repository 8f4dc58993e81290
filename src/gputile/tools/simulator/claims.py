"""Allocates the ResourceClaims of pods as kube-scheduler would.

kube-scheduler serves the requests of a claim one after the other. For each request, it
allocates the fitting GPU with the lowest index on the node. Claims with fields that this module
does not evaluate, such as selectors, are reported and never allocated here.
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
from gputile.core.scheduling.pod_filter import ranked_shapes
from gputile.tools.simulator.fields import Json
from gputile.tools.simulator.manifests import Manifest, make_uid

MIXED_GPUS = "it asks for GPUs by claims and by extended resources, but no node serves GPUs by both"


class _ClaimTemplateSpec(msgspec.Struct):
    spec: ResourceClaimSpec


class _ClaimTemplate(msgspec.Struct):
    spec: _ClaimTemplateSpec


@dataclass(slots=True)
class KnownClaims:
    """The ResourceClaims and the specs of ResourceClaimTemplates, by ``namespace/name``."""

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
            self.claims[key] = claim if manifest.stored else _new_claim(namespace, name, claim.spec)

    def release(self, nodes: Collection[str]) -> None:
        """Deallocate the claims on ``nodes``, because the pods of these nodes are placed again."""
        for key, claim in self.claims.items():
            if claim_node(claim) in nodes:
                self.claims[key] = msgspec.structs.replace(claim, status=ResourceClaimStatus())

    def problem(self, namespace: str, entry: Json) -> str:
        """Return why an entry of ``spec.resourceClaims`` cannot be evaluated, or "" if it can."""
        name = entry.get("resourceClaimName")
        if name:
            claim, kind = self.claims.get(f"{namespace}/{name}"), "ResourceClaim"
        else:
            name, kind = entry.get("resourceClaimTemplateName"), "ResourceClaimTemplate"
            spec = self.templates.get(f"{namespace}/{name}")
            claim = _new_claim(namespace, str(name), spec) if spec is not None else None
        if claim is None:
            text = f"there is no {kind} {namespace}/{name} of {RESOURCE_API}"
            return f"{text}: add its file with -f, or ignore it with --ignore-unknown"
        return claim_problem(claim)

    def create_from_templates(self, pod: Pod) -> tuple[Pod, list[ResourceClaim]]:
        """Create the pod's missing claims from their templates.

        Return two results: the pod with the names of its claims in its status, and the new claims.
        """
        made = {each.name for each in pod.status.resource_claim_statuses}
        claims, statuses = [], list(pod.status.resource_claim_statuses)
        for each in pod.spec.resource_claims:
            spec = self.templates.get(
                f"{pod.metadata.namespace}/{each.resource_claim_template_name}"
            )
            if spec is not None and each.name not in made:
                claims.append(
                    _new_claim(pod.metadata.namespace, f"{pod.metadata.name}-{each.name}", spec)
                )
                name = claims[-1].metadata.name
                statuses.append(PodResourceClaimStatus(name=each.name, resource_claim_name=name))
        status = msgspec.structs.replace(pod.status, resource_claim_statuses=tuple(statuses))
        return msgspec.structs.replace(pod, status=status), claims


def _new_claim(namespace: str, name: str, spec: ResourceClaimSpec) -> ResourceClaim:
    uid = make_uid("ResourceClaim", namespace, name)
    return ResourceClaim(metadata=ObjectMeta(namespace=namespace, name=name, uid=uid), spec=spec)


def claim_problem(claim: ResourceClaim) -> str:
    """Return why a claim is invalid or cannot be evaluated by this module, or "" otherwise."""
    before = f"claim {claim.metadata.name}: spec.devices"
    devices = claim.spec.devices
    if not devices.requests:
        return f"{before}.requests: it requests no device"
    for request in devices.requests:
        where = f"{before}.requests[{request.name}]"
        if request.exactly is None:
            return (
                f"{where}: kube-scheduler chooses one of the alternatives, and this choice is not "
                f"simulated"
            )
        if request.exactly.device_class_name not in (SHARE_CLASS, GPU_CLASS):
            return (
                f"{where}: kube-scheduler allocates devices of other drivers, and this is not "
                f"simulated"
            )
        if request.exactly.selectors:
            return f"{where}.selectors: kube-scheduler evaluates them, but the simulation does not"
    for constraint in devices.constraints:
        concerned = len(constraint.requests or devices.requests)
        if constraint.distinct_attribute != f"{DRIVER}/uuid" or concerned != 1:
            return (
                f"{before}.constraints: only a distinctAttribute {DRIVER}/uuid of one request "
                f"is simulated"
            )
    try:
        parse_claim(claim)
    except RequestError as error:
        return str(error)
    return ""


def allocate_claims(
    engine: PlacementEngine, pod: Pod, node: str
) -> list[ResourceClaim] | Refusal[FitRule]:
    """Return the pod's unallocated claims as kube-scheduler would allocate them on the node.

    If an allocation is impossible, return the refusal. The ledger does not change.

    Raises:
        RequestError: no GPU can ever serve a claim, or the claim would bypass memory accounting.
    """
    claims, allocated = list(engine.ledger.claims.of_pod(pod)), []
    try:
        for claim in claims:
            others = [each.name for each in claim.pods if each.uid != pod.metadata.uid]
            if others:
                text = (
                    f"claim {claim.metadata.name} is reserved for pod {others[0]}, and pods cannot "
                    f"share a claim"
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
    for shape in parse_claim(claim):
        decision = _first_fit(engine, shape, host, node)
        if isinstance(decision, Refusal):
            return decision
        results += _results(decision, shape)
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
    """Return the requests for ``shape``. The second, if any, is for nodes in mode ``core_mem``."""
    return [Request(each, CLAIM_UNIT_MIB, (), host) for each in ranked_shapes(shape)]


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
