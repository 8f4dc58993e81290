"""Holds why kube-scheduler's own rules keep a pod off a node: the rule, and what it is about."""

from enum import StrEnum

import msgspec

from gputile.api.well_known import GPU_RESOURCES


class PredicateRule(StrEnum):
    """kube-scheduler's words for a rule that a node breaks."""

    UNKNOWN_NODE = "node(s) are not known"
    UNSCHEDULABLE = "node(s) were unschedulable"
    WRONG_NAME = "node(s) didn't match the requested node name"
    UNTOLERATED_TAINT = "node(s) had untolerated taint"
    WRONG_LABELS = "node(s) didn't match Pod's node affinity/selector"
    WRONG_OS = "node(s) had another operating system than the pod's spec.os.name"
    HOST_PORTS = "node(s) didn't have free ports for the requested pod ports"
    TOO_MANY_PODS = "Too many pods"
    INSUFFICIENT = "Insufficient"
    DISK_TAKEN = "node(s) had no available disk"
    AFFINITY = "node(s) didn't match pod affinity rules"
    ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
    EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
    SPREAD = "node(s) didn't match pod topology spread constraints"
    SPREAD_LABEL = "node(s) didn't match pod topology spread constraints (missing required label)"


class PredicateRefusal(msgspec.Struct, frozen=True, gc=False):
    """The ``rule`` that a node breaks for a pod, and the resource or taint that it is ``about``, "" for neither."""

    rule: PredicateRule
    about: str = ""

    @property
    def text(self) -> str:
        return f"{self.rule.value} {self.about}" if self.about else self.rule.value

    @property
    def lacks_gpus(self) -> bool:
        """Whether the node lacks a GPU resource, of which gputile says more."""
        return self.rule is PredicateRule.INSUFFICIENT and self.about in GPU_RESOURCES
