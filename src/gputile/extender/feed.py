"""From the API server's watches to the ledger: each change becomes one of the ledger's events."""

import gc
import logging
from collections.abc import Callable

from gputile.api.core import Node, Pod
from gputile.kube.decoding import Applied, Deleted, Event, Replaced, Unreadable
from gputile.ledger.events import Event as LedgerEvent
from gputile.ledger.events import NodeApplied, NodeDeleted, NodesReplaced, PodApplied, PodDeleted, PodsReplaced

log = logging.getLogger(__name__)


class Feed:
    """Takes what two reflectors deliver. ``apply`` is the ledger's."""

    def __init__(self, apply: Callable[[LedgerEvent], None]) -> None:
        self._apply = apply

    def pods(self, event: Event[Pod]) -> None:
        """Take an event of the pods' watch."""
        match event:
            case Applied(pod):
                self._apply(PodApplied(pod))
            case Deleted(pod):
                self._apply(PodDeleted(pod.metadata.uid))
            case Replaced(pods, unreadable):
                self._apply(PodsReplaced(pods, frozenset(each.uid for each in unreadable)))
                # What a list brought stays for long: a full collection need not walk it again and again.
                gc.collect()
                gc.freeze()
            case Unreadable():
                pass  # logged by the reflector; the last word on the pod stands

    def nodes(self, event: Event[Node]) -> None:
        """Take an event of the nodes' watch."""
        match event:
            case Applied(node):
                self._apply(NodeApplied(node))
            case Deleted(node):
                self._apply(NodeDeleted(node.metadata.name))
            case Replaced(nodes, unreadable):
                self._apply(NodesReplaced(nodes, frozenset(each.name for each in unreadable)))
            case Unreadable():
                pass  # logged by the reflector; the last word on the node stands
