"""Finds what would make a pod fit, and tries each remedy with the live code before it is shown (B4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from gputile.api.core import Node, Pod
from gputile.api.well_known import GPU_CORE, MODE_LABEL, NODE_GPU_COUNT_LABEL, Mode
from gputile.api.wording import described, first_of, memory_text
from gputile.core.devices.request import PERCENT_STEP, Request, RequestError, RequestKind, Shape
from gputile.core.ledger.booking import Booking
from gputile.core.refusal import PredicateRule, Refusal
from gputile.tools.simulator.node_reports import NodeReport, Subject
from gputile.tools.simulator.proposals import (
    asking_less,
    coming_node,
    created_anew,
    demanded_labels,
    overlooked,
)

_MOST_NODES_TRIED = 50
_NAMES_SHOWN = 5


class Remedy(msgspec.Struct, frozen=True, rename="camel"):
    """One change that would be enough by itself. ``nodes`` are those where the pod would then fit, as far as named."""

    change: Annotated[str, described("A change that would be enough by itself.")]
    nodes: Annotated[list[str], described("The nodes where the pod would then fit, as far as named.")]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A remedy, and how the cluster would be after it.

    ``pod`` is the pod as it would be, ``leaving`` are the UIDs of the pods that would be gone, and one of the nodes
    ``coming`` would be added. ``resolved`` are kube-scheduler's reasons that would no longer forbid its nodes.
    """

    remedy: Remedy
    pod: Pod
    leaving: frozenset[str] = frozenset()
    coming: tuple[Node, ...] = ()
    resolved: tuple[Refusal[PredicateRule], ...] = ()


def remedies(subject: Subject, reports: Sequence[NodeReport]) -> list[Remedy]:
    """Return the changes that would make room for a pod that fits nowhere, the smallest first."""
    return [proposal.remedy for proposal in proposals(subject, reports)]


def proposals(subject: Subject, reports: Sequence[NodeReport]) -> list[Proposal]:
    """Return the remedies with what they change. A pod that no scheduler looks at has to be created anew at least."""
    request = subject.request
    if request is None:
        return []
    anew = created_anew(subject.pod, subject.configuration)
    found: list[Proposal | None] = []
    if not overlooked(subject.pod, subject.configuration):
        if any(report.fits for report in reports):
            return []
        in_tree = subject.predicates.reasons(subject.pod)
        lacking = {name for name, why in in_tree.items() if why is None or why.lacks_gpus}
        open_nodes = [report for report in reports if not report.in_tree or report.name in lacking]
        found = [
            _smaller(subject, request, [report.name for report in open_nodes]),
            _departures(subject, request, [report for report in open_nodes if not report.unresolvable]),
            _in_tree(subject, [report for report in reports if report.in_tree and report.gpus and not report.gpu]),
            _new_node(subject, request),
        ]
    told = [proposal for proposal in found if proposal is not None]
    return told if anew is None else [*told, *_anew(subject, anew)]


def _smaller(subject: Subject, request: Request, names: Sequence[str]) -> Proposal | None:
    """Find the largest amount that fits now, if asking for less is enough."""
    shape, pod = request.shape, subject.pod
    if not names:
        return None
    tried = [(shape.kind.value, shape.gpus if shape.kind is RequestKind.SHARED else 1)]
    if shape.percent:
        tried.append((GPU_CORE, PERCENT_STEP * shape.gpus))
    for resource, step in tried:
        less = asking_less(pod, resource, step, lambda asking: bool(subject.fitting(asking, names, 1)))
        if less is not None:
            amount = _amount(subject.request_of(less), resource)
            remedy = Remedy(f"pod {pod.key} asks for no more than {amount}", subject.fitting(less, names, _NAMES_SHOWN))
            return Proposal(remedy, less)
    return None


def _amount(request: Request | None, resource: str) -> str:
    """Return how much of a resource is asked for, in words."""
    shape = request.shape if request is not None else Shape(RequestKind.WHOLE, 0)
    each = "" if shape.gpus == 1 else f" over its {shape.gpus} GPUs"
    if resource == GPU_CORE:
        return f"{shape.percent * shape.gpus} percent of compute{each}"
    if request is None or shape.kind is not RequestKind.SHARED:
        return f"{shape.gpus} of {resource}"
    return f"{memory_text(request.units * request.unit_mib)}{each} ({resource}: {request.units})"


def _departures(subject: Subject, request: Request, nodes: Sequence[NodeReport]) -> Proposal | None:
    """Find the node where the fewest pods have to leave; of equal nodes, the one where they hold the least memory."""
    best: tuple[int, int, str, list[Booking]] | None = None
    for report in nodes[:_MOST_NODES_TRIED]:
        leaving = _fewest(subject, request, report.name)
        if leaving is not None:
            held = sum(share.mib for booking in leaving for share in booking.gpus)
            found = (len(leaving), held, report.name, leaving)
            best = found if best is None or found[:2] < best[:2] else best
    if best is None:
        return None
    _, _, name, leaving = best
    verb = "ends, or moves to another node" if len(leaving) == 1 else "end, or move to other nodes"
    noun = "pod" if len(leaving) == 1 else "pods"
    remedy = Remedy(f"{noun} {first_of([booking.key for booking in leaving], _NAMES_SHOWN)} {verb}", [name])
    return Proposal(remedy, subject.pod, frozenset(booking.uid for booking in leaving))


def _fewest(subject: Subject, request: Request, name: str) -> list[Booking] | None:
    """Return a few pods of a node without which the request fits; None where only siblings could make room."""
    others = (booking for booking in subject.ledger.on_node(name) if not subject.is_sibling(booking.uid))
    bookings = sorted(others, key=lambda b: (sum(share.mib for share in b.gpus), b.key))

    def fits(leaving: Sequence[Booking]) -> bool:
        return subject.fits_without(request, name, frozenset(booking.uid for booking in leaving))

    for booking in bookings:
        if fits([booking]):
            return [booking]
    if not bookings or not fits(bookings):
        return None
    leaving = list(bookings)
    for booking in reversed(bookings):  # the largest stay where they can
        fewer = [other for other in leaving if other is not booking]
        if fits(fewer):
            leaving = fewer
    return leaving


def _in_tree(subject: Subject, nodes: Sequence[NodeReport]) -> Proposal | None:
    """Name the nodes whose GPUs have room, and everything else that forbids them."""
    reasons = {
        report.name: tuple(subject.predicates.obstacles(subject.pod, report.name))
        for report in nodes[:_MOST_NODES_TRIED]
    }
    if not reasons:
        return None
    fewest = min(reasons.values(), key=len)
    alike = [name for name, each in reasons.items() if each == fewest]
    quoted = " and ".join(f'"{reason.text}"' for reason in fewest)
    noun = f"reason {quoted} is" if len(fewest) == 1 else f"reasons {quoted} are"
    remedy = Remedy(f"kube-scheduler's {noun} resolved; the GPUs there have enough free", alike[:_NAMES_SHOWN])
    return Proposal(remedy, subject.pod, resolved=fewest)


def _anew(subject: Subject, pod: Pod) -> list[Proposal]:
    """Return the remedies of ``pod`` if it is created anew, as admission would store it today."""
    try:
        other = subject.instead(pod)
    except RequestError:
        return []
    reports = other.reports()
    request, before = other.request, subject.request
    change = f"pod {pod.key} is deleted and created anew"
    if request is not None and before is not None and request.unit_mib != before.unit_mib:
        change += f", asking for {_amount(request, request.shape.kind.value)}"
    fitting = [report.name for report in reports if report.fits]
    if fitting:
        return [Proposal(Remedy(change, fitting[:_NAMES_SHOWN]), pod)]
    return [
        replace(each, remedy=Remedy(f"{change}, and {each.remedy.change}", each.remedy.nodes))
        for each in proposals(other, reports)
    ]


def _new_node(subject: Subject, request: Request) -> Proposal | None:
    """Describe an empty node that would take the pod, in the modes in which it would."""
    shape, pod = request.shape, subject.pod
    if shape.kind is RequestKind.SHARED:
        modes = [Mode.CORE_MEM] if shape.percent else [Mode.CGPU, Mode.SHARE, Mode.MPS]
    else:
        modes = [Mode.EXCLUSIVE] if shape.kind is RequestKind.WHOLE else [Mode.TOPOLOGY]
    needs = subject.predicates.needs(pod)
    made = (coming_node(pod, request, mode, subject.configuration, needs) for mode in modes)
    coming = tuple(node for node in made if node is not None and subject.fits_new(request, node))
    if not coming:
        return None
    demanded = {key: value for key, value in (demanded_labels(pod) or {}).items() if key != MODE_LABEL}
    count = int(demanded.get(NODE_GPU_COUNT_LABEL, shape.gpus))
    gpus = "one GPU" if count == 1 else f"{count} GPUs"
    if shape.kind is RequestKind.SHARED:
        gpus += f" of {memory_text(shape.mib)} or more"
    named = " or ".join(dict.fromkeys(f"{MODE_LABEL}={node.metadata.labels[MODE_LABEL]}" for node in coming))
    more = "".join(f" and {key}={value}" for key, value in demanded.items())
    return Proposal(Remedy(f"a node with {gpus} comes, labelled {named}{more}", []), pod, coming=coming)
