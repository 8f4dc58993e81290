"""Hides from a viewer the names of pods that it may not list.

How large a block is, and whether it is reserved, stays: free memory would be wrong without it. What a node says is
wrong is left out for who may not list all pods, since such sentences name pods.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gputile.tools.web.records import (
    Difference,
    NodeTile,
    NodeUsage,
    PendingPod,
    PodTile,
    PodUsageAnswer,
    UsageAnswer,
)
from gputile.tools.web.viewers import Rights

HIDDEN: Final = "(hidden)"  # no name of Kubernetes has parentheses
_PROBLEMS: Final = ("this node has a problem; those who may list the pods of all namespaces see which",)
_UNASKED: Final = "the use is not known; those who may list the pods of all namespaces see why"


def visible_nodes(nodes: Iterable[NodeTile], rights: Rights) -> list[NodeTile]:
    """Return nodes as a viewer sees them."""
    return [_node(each, rights) for each in nodes]


def visible_pending(pending: Iterable[PendingPod], rights: Rights) -> list[PendingPod]:
    """Return the pending pods that a viewer may list."""
    return [each for each in pending if rights.sees(each.namespace)]


def visible_difference(found: Difference, rights: Rights) -> Difference:
    """Return what changes for a viewer."""
    return Difference(
        nodes={name: _node(each, rights) for name, each in found.nodes.items()},
        nodes_gone=found.nodes_gone,
        pending={key: each for key, each in found.pending.items() if rights.sees(each.namespace)},
        pending_gone=tuple(key for key in found.pending_gone if rights.sees(key.partition("/")[0])),
    )


def visible_usage(found: UsageAnswer, rights: Rights) -> UsageAnswer:
    """Return what is used by pods that a viewer may list, and by GPUs as a whole."""
    nodes = {name: _usage(each, rights) for name, each in found.nodes.items()}
    return msgspec.structs.replace(found, nodes=nodes, trouble=_trouble(found.trouble, rights))


def visible_pod_usage(found: PodUsageAnswer, rights: Rights) -> PodUsageAnswer:
    """Return what a pod uses that a viewer may list."""
    return msgspec.structs.replace(found, trouble=_trouble(found.trouble, rights))


def _trouble(text: str, rights: Rights) -> str:
    """Return why something is not measured: what is said of a request names the agent's pod."""
    return text if rights.everywhere or not text else _UNASKED


def _node(node: NodeTile, rights: Rights) -> NodeTile:
    if rights.everywhere:
        return node
    named = [each for each in node.pods if rights.sees(each.namespace)]
    hidden = [_hidden(each) for each in node.pods if not rights.sees(each.namespace)]
    pods = (*named, *hidden)  # among the others, they would stand where their names belong
    return msgspec.structs.replace(node, pods=pods, problems=_PROBLEMS if node.problems else ())


def _hidden(pod: PodTile) -> PodTile:
    return PodTile(
        HIDDEN,
        HIDDEN,
        pod.shares,
        whole=pod.whole,
        reserved=pod.reserved,
        asked=pod.asked,
        instances=pod.instances,
    )


def _usage(usage: NodeUsage, rights: Rights) -> NodeUsage:
    if rights.everywhere:
        return usage
    pods = {key: each for key, each in usage.pods.items() if rights.sees(key.partition("/")[0])}
    return msgspec.structs.replace(usage, pods=pods, problem=_trouble(usage.problem, rights))
