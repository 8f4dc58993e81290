"""Explains why a pod is on its node, pending or not created, and which changes would help (B4)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.api.resource_claims import ResourceClaim, claims_of
from gputile.api.well_known import ALLOCATION_ANNOTATION
from gputile.api.wording import described, memory_text
from gputile.api.workloads import Event
from gputile.core.devices.allocation import Allocation, AllocationError, decode_allocation
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.request import Request, RequestError
from gputile.core.scheduling.gang_plan import GangCandidate
from gputile.core.scheduling.placement_engine import TOP_SCORE
from gputile.tools.simulator.claims import claim_problem
from gputile.tools.simulator.controller_rules import VictimFinder, victims_text
from gputile.tools.simulator.fields import MistypedResources, mistyped_mode
from gputile.tools.simulator.node_reports import (
    NodeReport,
    Subject,
    gates_text,
    memory_warning,
    missed_admission_text,
    request_text,
)
from gputile.tools.simulator.remedies import Remedy, remedies

NODES_NAMED: Final = 10
_REASON: Final = "FailedCreate"
_BY_LIMIT_RANGE: Final = (
    r"(?:minimum|maximum) \S{1,253} usage per [A-Z]|max limit to request ratio per [A-Z]"
)
_REMEDIES: Final = (
    (
        r"exceeded quota: ([a-z0-9.-]{1,253}),",
        "ResourceQuota {} holds it: delete pods of the namespace, or raise the quota",
    ),
    (
        r"failed quota: ([a-z0-9.-]{1,253}): must specify ",
        "ResourceQuota {} counts a resource that the pod does not set: set it, or add a LimitRange "
        "default",
    ),
    (
        _BY_LIMIT_RANGE,
        "a LimitRange of the namespace holds it: change what the pod asks for, or the LimitRange",
    ),
)


@dataclass(frozen=True, slots=True)
class PodExplanation:
    pod: Pod
    state: str  # one of the states of ExplainAnswer.state
    text: Sequence[str]  # sentences
    placed: bool  # whether the pod is bound, has ended, fits a node now, or can preempt other pods
    reports: Sequence[NodeReport] = ()  # one for each node, if the pod is pending
    changes: Sequence[Remedy] = ()  # changes, each of which would make the pod fit


def explain_pod(
    pod: Pod,
    nodes: Sequence[Node],
    pods: Sequence[Pod],
    configuration: Configuration,
    now_ns: int,
    claims: Sequence[ResourceClaim] = (),
) -> PodExplanation:
    """Explain why ``pod``, which is one of ``pods``, is on its node or pending.

    ``now_ns`` is Unix time in nanoseconds.
    """
    try:
        subject = Subject(pod, nodes, pods, configuration, now_ns, claims)
    except RequestError as error:
        return PodExplanation(
            pod, "Refused", [f"{pod.key} can never be placed: {error}"], placed=False
        )
    if pod.finished or pod.spec.node_name:
        state, text = placement_of(pod)
        more: list[str | None] = []
        if not pod.finished:
            more = [_placement_reason(subject), _memory_warning(subject, [pod.spec.node_name])]
        return PodExplanation(pod, state, [text, *filter(None, more)], placed=True)
    return _pending(subject)


def _pending(subject: Subject) -> PodExplanation:
    if subject.invalid:
        reason = (
            f"{subject.invalid}. kube-scheduler may allocate it nevertheless. On which node, "
            f"gputile cannot tell."
        )
        return PodExplanation(
            subject.pod, "Refused", [f"Pod {subject.pod.key}: {reason}"], placed=False
        )
    reports = subject.reports()
    fitting = [report.name for report in reports if report.fits]
    text = _request_sentences(subject)
    waiting = gates_text(subject.pod) or missed_admission_text(subject.pod, subject.configuration)
    if waiting is not None:
        text.append(f"It is not scheduled yet: {waiting}.")
    if fitting:
        named = ", ".join(fitting[:NODES_NAMED]) + (", ..." if len(fitting) > NODES_NAMED else "")
        soon = "" if waiting is not None else "; kube-scheduler will try it again"
        text.append(f"It fits {len(fitting)} of {len(reports)} node(s) now: {named}{soon}.")
        text += filter(None, [_memory_warning(subject, fitting)])
    else:
        even_empty = (
            ""
            if any(not report.unresolvable for report in reports)
            else ", not even when they are empty"
        )
        text.append(f"It fits none of {len(reports)} node(s){even_empty}.")
        containers = (*subject.pod.spec.init_containers, *subject.pod.spec.containers)
        requested = (name for container in containers for name in container.resources.limits)
        mistyped = [*MistypedResources(subject.nodes).among(requested), mistyped_mode(subject.pod)]
        text += [f"{each[:1].upper()}{each[1:]}" for each in mistyped if each]
    state = "Waits" if waiting is not None else ("Fits" if fitting else "Pending")
    preempts = None if fitting or waiting is not None else _preemption_text(subject)
    if preempts is not None:
        state, text = "Preempts", [*text, preempts]
    placed = bool(fitting) or preempts is not None
    return PodExplanation(subject.pod, state, text, placed, reports, remedies(subject, reports))


def _request_sentences(subject: Subject) -> list[str]:
    """Return sentences on the pod's requests, and on claims that gputile cannot evaluate."""
    pod = subject.pod
    if not pod.spec.resource_claims:
        return [f"Pod {pod.key} {request_text(subject.request)}."]
    parts = [request_text(Request(shape, CLAIM_UNIT_MIB, ())) for shape in subject.shapes]
    allocated = [
        claim.metadata.name for claim in subject.claims if claim.status.allocation is not None
    ]
    parts += [f"has GPUs by claim {name}, which is allocated" for name in allocated]
    if not parts:
        parts = [
            request_text(subject.request)
            if subject.request
            else "has no claim for gputile's GPUs that is known"
        ]
    known = {claim.metadata.name for claim in subject.claims}
    others = [name for name in claims_of(pod) if name not in known]
    not_made = len(pod.spec.resource_claims) - len(claims_of(pod))
    unread = [f"claim {name}, which is for other devices or does not exist" for name in others]
    unread += [f"{not_made} claim(s) that have not been made yet"] if not_made else []
    unread += filter(None, map(claim_problem, subject.claims))
    return [f"Pod {pod.key} {' and '.join(parts)}.", *(f"Not judged: {each}." for each in unread)]


def _preemption_text(subject: Subject) -> str | None:
    """Return a sentence on the pods that the explained pod would preempt, or None."""
    if subject.request is None:
        return None
    finder = VictimFinder(subject.engine, subject.predicates, subject.nodes, subject.others)
    found = finder.find([GangCandidate(subject.pod, subject.request)], 1, subject.now_ns)
    if found is None:
        return None
    place = found.places[subject.pod.metadata.uid]
    victims = victims_text(finder.pods[uid] for uid in (*found.evicted, *found.withdrawn))
    unless = "unless a PodDisruptionBudget forbids it"
    return (
        f"Its priority is {subject.pod.spec.priority}: it preempts {victims} on node "
        f"{place.node}, {unless}."
    )


def _memory_warning(subject: Subject, nodes: Sequence[str]) -> str | None:
    return memory_warning(subject.ledger, nodes) if subject.request is not None else None


def placement_of(pod: Pod) -> tuple[str, str]:
    """Return the state of a pod that is bound or has ended, and a sentence on its node and GPUs."""
    if pod.finished:
        return (
            pod.status.phase,
            f"Pod {pod.key} has ended ({pod.status.phase}) and holds no GPUs any more.",
        )
    text, node = pod.metadata.annotations.get(ALLOCATION_ANNOTATION), pod.spec.node_name
    if text is None:
        return "Placed", f"Pod {pod.key} is on node {node}, without an allocation of GPUs."
    try:
        gpus = _gpus(decode_allocation(text))
    except AllocationError as error:
        return "Placed", f"Pod {pod.key} is on node {node}; its allocation cannot be read: {error}."
    return "Placed", f"Pod {pod.key} is on node {node}: {gpus}."


def _gpus(allocation: Allocation) -> str:
    parts = []
    for share in allocation.gpus:
        amount = "all of it" if allocation.whole else memory_text(share.mib)
        percent = (
            f", {share.percent} percent of compute"
            if share.percent and not allocation.whole
            else ""
        )
        parts.append(f"GPU {share.index} ({share.uuid}), {amount}{percent}")
    return "; ".join(parts)


class ExplainAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The JSON output of ``gputile explain POD``."""

    namespace: Annotated[str, described("The pod's namespace.")]
    pod: Annotated[str, described("The pod's name.")]
    state: Annotated[
        str,
        described(
            "Placed, Fits, Preempts, Pending, Waits, Refused, or the phase of a pod that has ended."
        ),
    ]
    node: Annotated[
        str | None, described("The node to which the pod is bound, or null if it is not bound.")
    ]
    text: Annotated[str, described("The explanation in sentences.")]
    nodes: Annotated[
        list[NodeReport],
        described(
            "Whether and why each node fits the pod, ordered from the closest fit. The list is "
            "empty if the pod is bound."
        ),
    ]
    changes: Annotated[
        list[Remedy], described("Changes, each of which would make the pod fit by itself.")
    ]


def explain_answer(explanation: PodExplanation, most_nodes: int | None = None) -> ExplainAnswer:
    """Convert an explanation to its JSON record, with at most ``most_nodes`` of its nodes."""
    pod = explanation.pod
    return ExplainAnswer(
        namespace=pod.metadata.namespace,
        pod=pod.metadata.name,
        state=explanation.state,
        node=pod.spec.node_name or None,
        text=" ".join(explanation.text),
        nodes=list(explanation.reports[:most_nodes]),
        changes=list(explanation.changes),
    )


def _placement_reason(subject: Subject) -> str | None:
    """Return a sentence that compares a bound pod's node with the other nodes as they are now.

    The state of the cluster at the time of the binding is not recorded. Return None if gputile does
    not place the pod, or if the node is unknown.
    """
    pod, node = subject.pod, subject.pod.spec.node_name
    gang = gang_of(pod) if subject.configuration.admission.gangs else None
    if gang is not None:
        return f"The pods of its gang {gang.name} were placed together."
    unbound = msgspec.structs.replace(pod.spec, node_name="")
    in_tree = subject.predicates.reasons(msgspec.structs.replace(pod, spec=unbound))
    request = subject.request
    if request is None or node not in in_tree:
        return None
    allowed = [name for name, reason in in_tree.items() if reason is None]
    feasible = subject.engine.filter(request, allowed).feasible
    if node not in feasible:
        refused = in_tree[node] or subject.engine.refusal(request, node)
        return (
            f"It would not be placed there now: {refused.text if refused else 'it does not fit'}."
        )
    if len(feasible) == 1:
        return "No other node would take the pod now."
    text = f"{len(feasible)} of {len(in_tree)} node(s) would take the pod now"
    if subject.engine.demand is not None:
        return f"{text}."  # the packing policy ranks by prices that only the extender knows
    policy = subject.configuration.placement
    ranks = dict(zip(feasible, subject.engine.rank(request, feasible), strict=True))
    if ranks[node] >= TOP_SCORE - 1:  # the best node, or an equally good one
        return f"{text}, and {policy} puts this one first."
    return f"{text}, and {policy} would put {max(ranks, key=ranks.__getitem__)} first."


def creation_refusal(name: str, events: Iterable[Event]) -> str | None:
    """Return why a pod could not be created, from the Events of its namespace.

    ``name`` is the name of the pod or of its controller. The reason is the message of the
    controller's latest FailedCreate Event. Return None if there is no such Event.
    """
    found = [
        event
        for event in events
        if event.reason == _REASON
        and event.message
        and event.involved_object.name
        and f"{name}-".startswith(f"{event.involved_object.name}-")
    ]
    if not found:
        return None
    latest = max(found, key=lambda event: event.when)
    about = latest.involved_object
    return (
        f"{about.kind} {about.name} could not create it: {latest.message}{_remedy(latest.message)}"
    )


def _remedy(message: str) -> str:
    """Return "; " and the remedy if ``message`` is about a quota or limit, or "" otherwise."""
    found = ((re.search(pattern, message), text) for pattern, text in _REMEDIES)
    return next((f"; {text.format(*match.groups())}" for match, text in found if match), "")
