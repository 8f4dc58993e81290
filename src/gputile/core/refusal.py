"""Defines all rules by which requests, pods or nodes are refused, and the record of a refusal.

Filter, bind, admission, node types, gangs, preemption and ``kube_predicates`` all use this record.
Each text that users see is written in one place, where the rule is applied.
"""

import heapq
from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum, StrEnum
from typing import Generic, TypeVar

import msgspec

from gputile.api.well_known import GPU_RESOURCES
from gputile.api.wording import shortened


class PredicateRule(StrEnum):
    """A check that kube-scheduler makes. The value is its message for nodes that fail the check."""

    UNKNOWN_NODE = "node(s) are not known"
    UNSCHEDULABLE = "node(s) were unschedulable"
    WRONG_NAME = "node(s) didn't match the requested node name"
    UNTOLERATED_TAINT = "node(s) had untolerated taint {about}"
    WRONG_LABELS = "node(s) didn't match Pod's node affinity/selector"
    WRONG_OS = "node(s) had another operating system than the pod's spec.os.name"
    HOST_PORTS = "node(s) didn't have free ports for the requested pod ports"
    TOO_MANY_PODS = "Too many pods"
    INSUFFICIENT = "Insufficient {about}"
    AFFINITY = "node(s) didn't match pod affinity rules"
    ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
    EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
    SPREAD = "node(s) didn't match pod topology spread constraints"
    SPREAD_LABEL = "node(s) didn't match pod topology spread constraints (missing required label)"


class FitRule(IntEnum):
    """A rule that a node's GPUs break for a request. The rules are in the order of the checks."""

    NO_GPUS = 1
    BROKEN = 2
    UNPLACED = 3
    MODE = 4
    UNIT = 5
    TOO_FEW = 6
    TOO_LARGE = 7
    GPUS_TAKEN = 8


class BindRule(Enum):
    """A reason not to bind a pod, independent of what the node has free."""

    INVALID = "{about}"
    DOUBTED = "the API server is being asked whether pod {about} is still bound to node {node}"
    BOUND_ELSEWHERE = "pod {about} already has GPUs of node {node}"


class ReservationRule(Enum):
    """Why a pod of a gang or with a reservation waits. ``{about}`` is a GPU, a node or a pod."""

    NO_RESERVATION = "no GPUs are reserved for the pod yet"
    PLAN_INCOMPLETE = "{there} of the {wanted} reservations of its plan exist so far"
    NO_FIRST_POD = "its plan names no pod to bind first"
    OTHER_NODE = "GPUs of node {node} are reserved for the pod"
    FIRST_NOT_BOUND = "pod {about} of its gang must be bound first, and is not bound yet"
    NODE_GONE = "{about} is gone"
    NOT_SERVED = "{about} has another mode now"
    NODE_CLOSED = "{about} accepts no GPU pods at the moment"
    GPU_GONE = "{about} is gone or unhealthy"
    GPU_TAKEN = "{about} is used by other pods"
    VICTIMS_REMAIN = "{about} is not free yet: the preempted pods have to end first"
    OTHER_UNIT = "{about} has another memory unit now"


class NodeTypeRule(Enum):
    """A reason not to add a node of a type for a pod."""

    MODE = "its mode {there} does not serve {wanted}"
    WITHOUT_COMPUTE = "its mode {there} serves GPU memory alone"
    WITH_COMPUTE = "its mode {there} serves GPU memory together with compute"
    UNIT = "its memory unit is {there} MiB; the pod counts in {wanted} MiB"
    TOO_FEW = "it has {there} GPUs; the pod needs {wanted}"
    TOO_SMALL = "its GPUs have {there}; the pod needs {wanted} MiB on one GPU"
    LABELS = "its labels or taints do not match the pod's node selector, affinity or tolerations"
    TOO_FEW_RESOURCES = (
        "an empty node as described in autoscaling.nodeTypes could not run the pod: {wanted}"
    )
    OTHER_PODS = "the pod's affinity or anti-affinity to other pods rules out a new node"
    PAUSED = (
        "such nodes were requested, but the pod fits none of them: no node was added, or its GPUs "
        "are unusable or in use by other pods; another node is requested later"
    )
    NOT_AS_DESCRIBED = "node {node} has this label, but could not run the pod even if it were empty"
    TOO_LITTLE = (
        "node {node} has this label, but could not run the pod even if it were empty: {wanted}"
    )


class AdmissionRule(StrEnum):
    """The admission rules, by the names that refusals, metrics and ``admission-rules.md`` use."""

    POD = "pod"
    AMOUNT = "gpu-amount"
    UNIT = "memory-unit"
    SHARE = "gpu-share"
    LEGACY_AFFINITY = "legacy-affinity"
    GANG = "gang"
    GANG_GATE = "gang-gate"
    FORGED = "forged-allocation"
    COUNT_CHANGED = "gpu-count-changed"
    ENVIRONMENT = "environment"
    PRIVILEGED = "privileged"
    HOST_NAMESPACE = "host-namespace"
    HOST_PATH = "host-path"
    MOUNT = "mount"
    DEVICE_ANNOTATION = "device-annotation"
    NODE_NAME = "node-name"


Rule = TypeVar("Rule", bound=Enum)
Rule_co = TypeVar("Rule_co", bound=Enum, covariant=True)


class Refusal(msgspec.Struct, Generic[Rule_co], frozen=True, gc=False):
    """A broken rule and its text for people. A text with extremely long names is truncated.

    The rule is broken on ``node`` and, if it concerns one GPU, on the GPU with the index ``gpu``.
    ``about`` is the pod, resource, taint or reserved GPU concerned. The rule compares the requested
    amount ``wanted`` with the existing amount ``there``.
    """

    rule: Rule_co
    text: str
    node: str = ""
    gpu: int | None = None
    wanted: int | str = 0
    there: int | str = 0
    about: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "text", shortened(self.text))

    @property
    def lacks_gpus(self) -> bool:
        """Whether the reason is an insufficient GPU resource. ``fit`` explains this in detail."""
        return self.rule is PredicateRule.INSUFFICIENT and self.about in GPU_RESOURCES


def refusal_by(
    rule: Rule,
    *,
    node: str = "",
    gpu: int | None = None,
    wanted: int | str = 0,
    there: int | str = 0,
    about: str = "",
) -> Refusal[Rule]:
    """Build a refusal with the text of its rule."""
    text = str(rule.value).format(node=node, wanted=wanted, there=there, about=about)
    return Refusal(rule, text, node, gpu, wanted, there, about)


NAMES_SHOWN = 3


def grouped(reasons: Iterable[tuple[str, str]], asked: int, most: int) -> list[str]:
    """Return a text for each of the first ``most`` distinct reasons.

    ``reasons`` are pairs of a node and its reason. Reasons are in the order of their first nodes.
    ``asked`` is the number of all nodes. If nodes are left out, a last text states how many.
    """
    names: dict[str, list[str]] = {}
    for name, why in reasons:
        names.setdefault(why, []).append(name)
    shown = list(names.items())[:most]
    left = asked - sum(len(alike) for _, alike in shown)
    texts = [refused_nodes_text(first_few(alike), len(alike), why) for why, alike in shown]
    return texts + ([f"and {left} more"] if left > 0 else [])


def refused_nodes_text(first: Sequence[str], count: int, why: str) -> str:
    """Return "NODE: why" for one node, or "4 nodes (NODE, ...): why" for several nodes.

    ``first`` are the nodes to name, and ``count`` is the number of all nodes.
    """
    return f"{first[0]}: {why}" if count == 1 else f"{count} nodes ({some(first, count)}): {why}"


def some(first: Sequence[str], count: int) -> str:
    """Return the nodes ``first`` as a text, which ends with "..." if ``count`` is larger."""
    return ", ".join(first) + (", ..." if count > len(first) else "")


def first_few(names: Iterable[str]) -> list[str]:
    """Return the first few of ``names`` in alphabetical order.

    kube-scheduler sends nodes in a different order each time. Sorted names give the same nodes the
    same text.
    """
    return heapq.nsmallest(NAMES_SHOWN, names)
