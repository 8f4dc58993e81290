"""Counts the nodes whose agent is reported as silent, and since when, for the metrics."""

from collections.abc import Callable

from gputile.api.core import Node
from gputile.api.reasons import ConditionType
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent


class SilentNodes:
    """The nodes with the condition gputile.io/AgentSilent. ``unix_time`` tells the time, in seconds."""

    def __init__(self, unix_time: Callable[[], float]) -> None:
        self._unix_time = unix_time
        self._since: dict[str, float] = {}

    def node_event(self, event: WatchEvent[Node]) -> None:
        """Take an event of the nodes' watch."""
        match event:
            case Applied(node):
                self._put(node)
            case Deleted(node):
                self._since.pop(node.metadata.name, None)
            case Replaced(nodes, unreadable):
                there = {node.metadata.name for node in nodes}.union(each.name for each in unreadable)
                self._since = {name: since for name, since in self._since.items() if name in there}
                for node in nodes:
                    self._put(node)

    def count(self) -> int:
        """Return how many there are."""
        return len(self._since)

    def since(self) -> float:
        """Return since when the node has been silent that has been longest, Unix time in seconds; 0 where none is.

        What began while the clock was ahead begins now.
        """
        now = self._unix_time()
        self._since = {name: min(since, now) for name, since in self._since.items()}
        return min(self._since.values(), default=0.0)

    def _put(self, node: Node) -> None:
        if any(each.type == ConditionType.AGENT_SILENT and each.status == "True" for each in node.status.conditions):
            self._since.setdefault(node.metadata.name, self._unix_time())
        else:
            self._since.pop(node.metadata.name, None)
