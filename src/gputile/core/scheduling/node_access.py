"""Tells whether a node takes a pod by what is known of the node now, whatever is free on its GPUs.

kube-scheduler checks that before it asks the extender. What it has said may be old where the pod waits.
"""

from gputile.api.core import Pod
from gputile.core.kube_predicates.node_fit import static_reason
from gputile.core.kube_predicates.predicate_refusal import PredicateRefusal
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import NodeInfo


def kept_off(ledger: Ledger, pod: Pod, name: str) -> PredicateRefusal | None:
    """Return what of a node's cordon, labels or taints keeps the pod off it, None where nothing is known to."""
    info = _info(ledger, name)
    return static_reason(pod.spec, info.checked) if info is not None and info.checked is not None else None


def takes_now(ledger: Ledger, pod: Pod, name: str) -> bool:
    """Return whether a node takes the pod now: nothing keeps it off, and the node is ready and offers its GPUs."""
    info = _info(ledger, name)
    if info is None or info.checked is None:
        return info is not None
    # A pod may tolerate that a node is cordoned. If nothing else closes the node, it is as ready as any.
    closed = info.closed and not info.checked.spec.unschedulable
    return not closed and static_reason(pod.spec, info.checked) is None


def _info(ledger: Ledger, name: str) -> NodeInfo | None:
    row = ledger.row_of.get(name)
    return ledger.node_info(row) if row is not None else None
