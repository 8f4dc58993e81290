"""Explains why a pod is on its node, by what nodes and policy say as if it were not there (B4)."""

import msgspec

from gputile.api.core import Pod
from gputile.core.devices.gang_membership import gang_of
from gputile.core.scheduling.placement_engine import TOP_SCORE
from gputile.tools.simulator.explanation.node_reports import Subject


def why_there(subject: Subject) -> str | None:
    """Return a sentence on the node of a pod that is bound; None where gputile has no say in it.

    Nobody has written down how the cluster was when the pod was bound, so this is about the cluster as it is now.
    """
    pod, node = subject.pod, subject.pod.spec.node_name
    gang = gang_of(pod) if subject.configuration.admission.gangs else None
    if gang is not None:
        return f"The pods of its gang {gang.name} were placed together."
    in_tree = subject.predicates.reasons(_unbound(pod))
    request = subject.request
    if request is None or node not in in_tree:
        return None
    allowed = [name for name, reason in in_tree.items() if reason is None]
    feasible = subject.engine.filter(request, allowed).feasible
    if node not in feasible:
        refused = in_tree[node] or subject.engine.refusal(request, node)
        return f"It would not be placed there now: {refused.text if refused else 'it does not fit'}."
    if len(feasible) == 1:
        return "No other node would take the pod now."
    text = f"{len(feasible)} of {len(in_tree)} node(s) would take the pod now"
    if subject.engine.demand is not None:
        return f"{text}."  # packing weighs by prices that the extender alone has learnt
    policy = subject.configuration.placement
    ranks = dict(zip(feasible, subject.engine.rank(request, feasible), strict=True))
    if ranks[node] >= TOP_SCORE - 1:  # the best, or one as good
        return f"{text}, and {policy} puts this one first."
    return f"{text}, and {policy} would put {max(ranks, key=ranks.__getitem__)} first."


def _unbound(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=""))
