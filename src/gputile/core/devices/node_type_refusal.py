"""Tells why no node of a type is added for a pod: rule and amounts, worded where somebody reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class NodeTypeRule(Enum):
    """The rule that a type breaks for a pod, with its wording."""

    MODE = "its mode {offered} does not serve {requested}"
    WITHOUT_COMPUTE = "its mode {offered} serves GPU memory alone"
    WITH_COMPUTE = "its mode {offered} serves GPU memory together with compute"
    UNIT = "its memory unit is {offered} MiB; the pod counts in {requested} MiB"
    TOO_FEW = "it has {offered} GPUs; the pod needs {requested}"
    TOO_SMALL = "its GPUs have {offered}; the pod needs {requested} MiB on one GPU"
    LABELS = "its labels or taints are not those that the pod asks for"
    TOO_FEW_RESOURCES = (
        "a node as it is described in autoscaling.nodeTypes could not take the pod if empty: {requested}"
    )
    OTHER_PODS = "the pod wants, or does not want, other pods on its node"
    NO_INVENTORY = "node {offered} has this label, and its agent has reported no GPU; another one is asked for later"
    NOT_USABLE = "node {offered} has this label, and its GPUs cannot all be used; another one is asked for later"
    WENT_AWAY = "node {offered} went away before a pod had got its GPUs; another one is asked for later"
    NO_PLACEHOLDER = (
        "no placeholder could be created that asks for such a node: the events of Jobs in gputile's namespace, and the "
        "controller's log, say why; it is tried again later"
    )
    PAUSED = "such a node was asked for, and none came; it is asked for later"
    NOT_AS_DESCRIBED = "node {offered} has this label, and could not take the pod if empty"
    TOO_LITTLE = "node {offered} has this label, and could not take the pod if empty: {requested}"


_PAUSES: Final = (
    NodeTypeRule.PAUSED,
    NodeTypeRule.NO_PLACEHOLDER,
    NodeTypeRule.NO_INVENTORY,
    NodeTypeRule.NOT_USABLE,
    NodeTypeRule.WENT_AWAY,
)


@dataclass(frozen=True, slots=True)
class NodeTypeRefusal:
    """A rule that a type breaks for a pod: what is ``offered``, which may be a node's name, and what is requested."""

    rule: NodeTypeRule
    offered: str | int = ""
    requested: str | int = ""

    @property
    def text(self) -> str:
        """The refusal in words."""
        return self.rule.value.format(offered=self.offered, requested=self.requested)

    @property
    def passes(self) -> bool:
        """Whether a node of the type is asked for later, though none of use has come lately."""
        return self.rule in _PAUSES


def worded(refusals: Mapping[str, NodeTypeRefusal]) -> str:
    """Return in words why none of the types is added, each by its name."""
    whys = [f"{name}: {refusal.text}" for name, refusal in refusals.items()]
    return "; ".join(whys) or "autoscaling.nodeTypes is empty"
