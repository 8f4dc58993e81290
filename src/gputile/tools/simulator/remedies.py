"""Finds changes that would make a pod fit, and verifies each with the live placement code (B4)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from gputile.api.affinity import NodeSelectorRequirement
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import (
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    ResourceList,
    ResourceRequirements,
    Taint,
)
from gputile.api.quantity import count_of, parse_mib
from gputile.api.well_known import (
    CLAIMS_LABEL,
    GPU_CORE,
    GPU_RESOURCES,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_MEMORY_LABEL,
    WHOLE_GPU,
    Mode,
)
from gputile.api.wording import described, first_of, memory_text
from gputile.core.admission.completion import add_toleration
from gputile.core.admission.legacy_forms import apply_patch, rewrite
from gputile.core.devices.inventory import (
    MOST_GPUS,
    MOST_MIB,
    Gpu,
    Inventory,
    encode_inventory,
    resources_for_mode,
)
from gputile.core.devices.request import PERCENT_STEP, Request, RequestKind, Shape
from gputile.core.kube_predicates.pod_requests import CPU, Amounts
from gputile.core.ledger.booking import Booking
from gputile.core.refusal import PredicateRule, Refusal
from gputile.tools.simulator.fields import with_containers
from gputile.tools.simulator.node_reports import NodeReport, Subject, has_missed_admission

_NEW_NODE = "a-node-that-comes"
_HOST_LABEL = "kubernetes.io/hostname"
_MOST_NODES_TRIED = 50
_NAMES_SHOWN = 5


class Remedy(msgspec.Struct, frozen=True, rename="camel"):
    """A single change that is sufficient to make the pod fit."""

    change: Annotated[str, described("A change that would make the pod fit by itself.")]
    nodes: Annotated[list[str], described("Some of the nodes that the pod would then fit.")]


@dataclass(frozen=True, slots=True)
class Proposal:
    remedy: Remedy
    pod: Pod  # the pod after the change
    removed: frozenset[str] = frozenset()  # the UIDs of pods that would be removed
    new_nodes: tuple[Node, ...] = ()  # alternative nodes, one of which would be added
    # The reasons of kube-scheduler that would no longer apply.
    resolved: tuple[Refusal[PredicateRule], ...] = ()


def remedies(subject: Subject, reports: Sequence[NodeReport]) -> list[Remedy]:
    """Return changes that would make the subject fit a node, the smallest change first."""
    if subject.shapes:
        return _claims_remedy(subject)
    return [proposal.remedy for proposal in proposals(subject, reports)]


def _claims_remedy(subject: Subject) -> list[Remedy]:
    """Propose to serve a node's GPUs through claims, unless some node already does."""
    if any(info.by_claims for _, info in subject.ledger.nodes()):
        return []
    names = []
    for node in subject.nodes:
        info = subject.ledger.info_of(node.metadata.name)
        if info is None or info.mode is Mode.SHARE or info.sliced:
            continue
        inventory = encode_inventory(msgspec.structs.replace(info.inventory, claims=True))
        annotations = {**node.metadata.annotations, INVENTORY_ANNOTATION: inventory}
        meta = msgspec.structs.replace(node.metadata, name=_NEW_NODE, annotations=annotations)
        if subject.fits_new(None, msgspec.structs.replace(node, metadata=meta)):
            names.append(node.metadata.name)
    change = f'a node gets the label {CLAIMS_LABEL}: "true", and its GPU pods have ended'
    return [Remedy(change, names[:_NAMES_SHOWN])] if names else []


def proposals(subject: Subject, reports: Sequence[NodeReport]) -> list[Proposal]:
    """Return remedies with their effects.

    The only remedy for a pod that missed admission is its re-creation.
    """
    request = subject.request
    if request is None:
        return []
    readmitted = _readmitted(subject.pod, subject.configuration)
    found: list[Proposal | None] = []
    if not has_missed_admission(subject.pod, subject.configuration):
        if any(report.fits for report in reports):
            return []
        in_tree = subject.predicates.reasons(subject.pod)
        lacking = {name for name, why in in_tree.items() if why is None or why.lacks_gpus}
        open_nodes = [report for report in reports if not report.in_tree or report.name in lacking]
        found = [
            _smaller_request(subject, request, [report.name for report in open_nodes]),
            _removal(
                subject, request, [report for report in open_nodes if not report.unresolvable]
            ),
            _resolved_predicates(
                subject,
                [report for report in reports if report.in_tree and report.gpus and not report.gpu],
            ),
            _new_node(subject, request),
        ]
    if readmitted is not None:
        names = [node.metadata.name for node in subject.nodes]
        if fitting := subject.fitting(readmitted, names, _NAMES_SHOWN):
            remedy = Remedy(f"pod {readmitted.key} is deleted and created anew", fitting)
            found.append(Proposal(remedy, readmitted))
    return [proposal for proposal in found if proposal is not None]


def _smaller_request(subject: Subject, request: Request, names: Sequence[str]) -> Proposal | None:
    """Propose the largest reduced request that fits a node now, or None if none fits."""
    shape, pod = request.shape, subject.pod
    if not names:
        return None
    resources = [(shape.kind.value, shape.gpus if shape.kind is RequestKind.SHARED else 1)]
    if shape.percent:
        resources.append((GPU_CORE, PERCENT_STEP * shape.gpus))
    for resource, step in resources:
        reduced = _reduced(
            pod, resource, step, lambda candidate: bool(subject.fitting(candidate, names, 1))
        )
        if reduced is not None:
            amount = _amount(subject.request_of(reduced), resource)
            remedy = Remedy(
                f"pod {pod.key} asks for no more than {amount}",
                subject.fitting(reduced, names, _NAMES_SHOWN),
            )
            return Proposal(remedy, reduced)
    return None


def _amount(request: Request | None, resource: str) -> str:
    """Describe the total amount of a resource that a pod requests."""
    shape = request.shape if request is not None else Shape(RequestKind.WHOLE, 0)
    each = "" if shape.gpus == 1 else f" over its {shape.gpus} GPUs"
    if resource == GPU_CORE:
        return f"{shape.percent * shape.gpus} percent of compute{each}"
    if request is None or shape.kind is not RequestKind.SHARED:
        return f"{shape.gpus} of {resource}"
    return f"{memory_text(request.units * request.unit_mib)}{each} ({resource}: {request.units})"


def _removal(subject: Subject, request: Request, nodes: Sequence[NodeReport]) -> Proposal | None:
    """Propose to remove pods from one node.

    Prefer the node with the fewest removed pods. Among equal nodes, prefer the node on which the
    removed pods use the least memory.
    """
    best: tuple[int, int, str, list[Booking]] | None = None
    for report in nodes[:_MOST_NODES_TRIED]:
        removed = _smallest_removal(subject, request, report.name)
        if removed is not None:
            used_mib = sum(share.mib for booking in removed for share in booking.gpus)
            found = (len(removed), used_mib, report.name, removed)
            best = found if best is None or found[:2] < best[:2] else best
    if best is None:
        return None
    _, _, name, removed = best
    verb = "ends, or moves to another node" if len(removed) == 1 else "end, or move to other nodes"
    noun = "pod" if len(removed) == 1 else "pods"
    remedy = Remedy(
        f"{noun} {first_of([booking.key for booking in removed], _NAMES_SHOWN)} {verb}", [name]
    )
    return Proposal(remedy, subject.pod, frozenset(booking.uid for booking in removed))


def _smallest_removal(subject: Subject, request: Request, name: str) -> list[Booking] | None:
    """Return a small set of a node's pods whose removal would make the request fit.

    Siblings of the subject are never in the set. Return None if there is no such set.
    """
    others = (
        booking for booking in subject.ledger.on_node(name) if not subject.is_sibling(booking.uid)
    )
    bookings = sorted(others, key=lambda b: (sum(share.mib for share in b.gpus), b.key))

    def fits(removed: Sequence[Booking]) -> bool:
        return subject.fits_without(request, name, frozenset(booking.uid for booking in removed))

    for booking in bookings:
        if fits([booking]):
            return [booking]
    if not bookings or not fits(bookings):
        return None
    removed = list(bookings)
    for booking in reversed(bookings):  # keep the largest pods if possible
        fewer = [other for other in removed if other is not booking]
        if fits(fewer):
            removed = fewer
    return removed


def _resolved_predicates(subject: Subject, nodes: Sequence[NodeReport]) -> Proposal | None:
    """Propose to remove the obstacles that kube-scheduler finds on nodes with enough free GPUs.

    Choose the nodes with the fewest obstacles.
    """
    reasons = {
        report.name: tuple(subject.predicates.obstacles(subject.pod, report.name))
        for report in nodes[:_MOST_NODES_TRIED]
    }
    if not reasons:
        return None
    fewest = min(reasons.values(), key=len)
    names = [name for name, each in reasons.items() if each == fewest]
    quoted = " and ".join(f'"{reason.text}"' for reason in fewest)
    noun = f"reason {quoted} is" if len(fewest) == 1 else f"reasons {quoted} are"
    remedy = Remedy(
        f"kube-scheduler's {noun} resolved; enough GPU capacity is free there", names[:_NAMES_SHOWN]
    )
    return Proposal(remedy, subject.pod, resolved=fewest)


def _new_node(subject: Subject, request: Request) -> Proposal | None:
    """Propose to add an empty node that the pod would fit, in one of the suitable modes."""
    shape, pod = request.shape, subject.pod
    if shape.kind is RequestKind.SHARED:
        modes = [Mode.CORE_MEM] if shape.percent else [Mode.CGPU, Mode.SHARE, Mode.MPS]
    else:
        modes = [Mode.EXCLUSIVE] if shape.kind is RequestKind.WHOLE else [Mode.TOPOLOGY]
    needs = subject.predicates.needs(pod)
    made = (_empty_node(pod, request, mode, subject.configuration, needs) for mode in modes)
    new_nodes = tuple(node for node in made if node is not None and subject.fits_new(request, node))
    if not new_nodes:
        return None
    demanded = {
        key: value for key, value in (_demanded_labels(pod) or {}).items() if key != MODE_LABEL
    }
    count = int(demanded.get(NODE_GPU_COUNT_LABEL, shape.gpus))
    gpus = "one GPU" if count == 1 else f"{count} GPUs"
    if shape.kind is RequestKind.SHARED:
        gpus += f" of {memory_text(shape.mib)} or more"
    if shape.models:
        gpus += f" ({' or '.join(sorted(shape.models))})"
    others = (name for name, amount in needs.items() if amount and "/" in name)
    gpus = " and ".join((gpus, *sorted(name for name in others if name not in GPU_RESOURCES)))
    named = " or ".join(
        dict.fromkeys(f"{MODE_LABEL}={node.metadata.labels[MODE_LABEL]}" for node in new_nodes)
    )
    more = "".join(f" and {key}={value}" for key, value in demanded.items())
    return Proposal(
        Remedy(f"a node with {gpus} comes, labelled {named}{more}", []), pod, new_nodes=new_nodes
    )


def _reduced(pod: Pod, resource: str, step: int, enough: Callable[[Pod], bool]) -> Pod | None:
    """Limit ``resource`` in each container of ``pod`` to the largest amount that is acceptable.

    The amount is a multiple of ``step``. ``enough`` returns whether the changed pod is acceptable.
    Return None if the pod is not acceptable even with one step.
    """
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    amounts = [count_of(container.resources.limits, resource) for container in containers]
    best, low, high = None, 1, max(amounts, default=0) // step
    while low <= high:
        middle = (low + high) // 2
        capped = _capped(pod, resource, middle * step)
        if enough(capped):
            best, low = capped, middle + 1
        else:
            high = middle - 1
    return best


def _readmitted(pod: Pod, configuration: Configuration) -> Pod | None:
    """Return ``pod`` as admission would store it now, or None if nothing would differ.

    There is a difference, for example, if gputile's webhook did not run when the pod was created.
    """
    rewriting = rewrite(pod)
    add_toleration(pod, rewriting)
    found = pod
    if rewriting.operations:
        found = msgspec.convert(apply_patch(rewriting.operations, msgspec.to_builtins(pod)), Pod)
    if has_missed_admission(pod, configuration):
        spec = msgspec.structs.replace(found.spec, scheduler_name=configuration.scheduler_name)
        found = msgspec.structs.replace(found, spec=spec)
    return None if found is pod else found


def _empty_node(
    pod: Pod, request: Request, mode: Mode, configuration: Configuration, needs: Amounts
) -> Node | None:
    """Return an empty node of the given mode, just large enough for ``pod``.

    ``needs`` are the pod's requests, with CPU in millicores. The node has the labels that the pod
    demands, and the taint of GPU nodes if the controller sets this taint. Return None if no
    suitable labels are found, or if the labels demand an invalid number or memory size of GPUs.
    """
    demanded = _demanded_labels(pod)
    if demanded is None:
        return None
    unit = configuration.unit_mib
    try:
        count = int(demanded.get(NODE_GPU_COUNT_LABEL, request.shape.gpus))
        size = (
            parse_mib(demanded[NODE_GPU_MEMORY_LABEL]) if NODE_GPU_MEMORY_LABEL in demanded else 0
        )
    except ValueError:
        return None
    size = size or -(-max(request.shape.mib, 1) // unit) * unit
    if not (0 < count <= MOST_GPUS and size <= MOST_MIB):
        return None
    model = next(iter(sorted(request.shape.models)), "")
    gpus = tuple(Gpu(index, f"{_NEW_NODE}-{index}", size, model) for index in range(count))
    labels = {_HOST_LABEL: _NEW_NODE} | demanded | {MODE_LABEL: mode.value}
    offered = resources_for_mode(mode, gpus, unit)
    amounts: ResourceList = {
        name: f"{amount}m" if name == CPU else str(amount)
        for name, amount in {**needs, **offered}.items()
    }
    inventory = encode_inventory(Inventory(gpus, mode=mode.value, unit_mib=unit))
    taint = Taint(key=WHOLE_GPU, value="present", effect="NoSchedule")
    return Node(
        metadata=ObjectMeta(
            name=_NEW_NODE, labels=labels, annotations={INVENTORY_ANNOTATION: inventory}
        ),
        spec=NodeSpec(taints=(taint,) if configuration.controller.taint_nodes else ()),
        status=NodeStatus(capacity=amounts, allocatable=amounts),
    )


def _demanded_labels(pod: Pod) -> dict[str, str] | None:
    """Return node labels that satisfy the pod's selector and affinity, or None if none are found.

    If the affinity has several terms, the first term that labels can satisfy is used.
    """
    selected = dict(pod.spec.node_selector)
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None or affinity.required is None:
        return selected
    for term in affinity.required.node_selector_terms:
        labels = None if term.match_fields else _labels(selected, term.match_expressions)
        if labels is not None:
            return labels
    return None


def _labels(
    given: Mapping[str, str], requirements: Iterable[NodeSelectorRequirement]
) -> dict[str, str] | None:
    labels = dict(given)
    for requirement in requirements:
        if requirement.operator == "In" and requirement.values:
            labels.setdefault(requirement.key, requirement.values[0])
        elif requirement.operator == "Exists":
            labels.setdefault(requirement.key, "")
        elif requirement.operator in ("Gt", "Lt") and requirement.key not in labels:
            return None
    return labels


def _capped(pod: Pod, resource: str, most: int) -> Pod:
    """Reduce the limits and requests of a resource in each container of ``pod`` to ``most``."""
    amount: ResourceList = {resource: str(most)}

    def capped(container: Container) -> Container:
        limits, requests = container.resources.limits, container.resources.requests
        if count_of(limits, resource) <= most:
            return container
        requests = requests | amount if resource in requests else requests
        return msgspec.structs.replace(
            container, resources=ResourceRequirements(limits | amount, requests)
        )

    return with_containers(pod, capped)
