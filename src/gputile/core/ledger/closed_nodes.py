"""Finds nodes that take no new pods by Kubernetes' word, whatever they have free."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gputile.api.core import Node
from gputile.api.quantity import count_of
from gputile.api.well_known import Mode
from gputile.core.devices.advertised import resources_for_mode
from gputile.core.devices.inventory import Inventory

_STATE_TAINTS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_CORDONED: Final = "node.kubernetes.io/unschedulable"  # people set it with `kubectl cordon`
_KEEP_OUT: Final = ("NoSchedule", "NoExecute")


class ClosedRule(Enum):
    """Why Kubernetes lets a node take no new pods; the text is for people, before what it is about."""

    NOT_READY = "it is not ready"
    TAINTED = "it has the taint"
    NOTHING_OFFERED = "its kubelet offers no"


@dataclass(frozen=True, slots=True)
class Closure:
    """The rule by which a node is closed, and the taint or resource that it is ``about``."""

    rule: ClosedRule
    about: str = ""

    @property
    def text(self) -> str:
        """The reason for people."""
        return f"{self.rule.value} {self.about}".rstrip()


def closed_by(node: Node) -> Closure | None:
    """Return why a node takes no pods now, None where it does.

    Taints that say what state a node is in are such a reason; those that people set are not, since pods with GPUs
    tolerate them.
    """
    if any(each.type == "Ready" and each.status != "True" for each in node.status.conditions):
        return Closure(ClosedRule.NOT_READY)
    for taint in node.spec.taints:
        if taint.key.startswith(_STATE_TAINTS) and taint.key != _CORDONED and taint.effect in _KEEP_OUT:
            return Closure(ClosedRule.TAINTED, taint.key)
    return None


def nothing_offered(node: Node, mode: Mode | None, inventory: Inventory, unit_mib: int) -> Closure | None:
    """Return that a node's kubelet offers none of the GPUs that its agent reported, None where it offers some.

    GPUs that are all unhealthy, or booked, are no reason. Nor is an agent that is silent: as long as the kubelet offers
    its GPUs, kube-scheduler and the extender place pods there.
    """
    offered = node.status.allocatable or node.status.capacity
    if not offered or mode is None:
        return None
    expected = [name for name, n in resources_for_mode(mode, inventory.gpus, unit_mib).items() if n]
    if expected and not any(count_of(offered, name) for name in expected):
        return Closure(ClosedRule.NOTHING_OFFERED, min(expected))
    return None
