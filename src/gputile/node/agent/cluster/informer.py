"""Keeps the agent informed of node, pods and configuration by watches, and wakes its loops."""

import asyncio
import contextlib
from dataclasses import dataclass, field

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.known_pods import apply_pod, remove_pod, replace_pods


class Wakeup:
    """A wish that a loop does its work soon; wishes that come before it does add up to one."""

    def __init__(self) -> None:
        self._wished = asyncio.Event()

    def wish(self) -> None:
        self._wished.set()

    async def wait(self, within: float) -> None:
        """Return at the next wish, after ``within`` seconds without one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._wished.wait()
        self._wished.clear()


@dataclass(frozen=True, slots=True)
class Wakeups:
    """Wakes the agent's loops: ``compare`` the one that compares, ``publish`` the one that publishes on the node."""

    compare: Wakeup = field(default_factory=Wakeup)
    publish: Wakeup = field(default_factory=Wakeup)


class NodeInformer:
    """Takes in watch events and configurations, and wakes the loops that act on them.

    ``pods_listed`` and ``node_seen`` are set once the API server has told the pods of the node, and the node.
    """

    def __init__(self, state: AllocationState, wakeups: Wakeups, node_name: str) -> None:
        self.pods_listed, self.node_seen = asyncio.Event(), asyncio.Event()
        self._state = state
        self._wakeups = wakeups
        self._node_name = node_name

    def on_pods(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                if not apply_pod(self._state.pods, pod, self._state.configuration):
                    return
            case Deleted(pod):
                remove_pod(self._state.pods, pod)
            case Replaced(pods):
                replace_pods(self._state.pods, pods, self._state.configuration)
                self.pods_listed.set()
            case _:
                return
        self._wakeups.compare.wish()

    def on_node(self, event: WatchEvent[Node]) -> None:
        match event:
            case Applied(node):
                if not self._state.apply_node(node):
                    return
            case Replaced(nodes):
                found = next((node for node in nodes if node.metadata.name == self._node_name), None)
                self._state.apply_node(found)
            case _:
                return
        if self._state.node is not None:
            self.node_seen.set()
        self._wakeups.compare.wish()
        self._wakeups.publish.wish()

    def configure(self, configuration: Configuration) -> None:
        self._state.configure(configuration)
        self._wakeups.compare.wish()
