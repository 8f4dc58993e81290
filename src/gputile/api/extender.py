"""Defines the JSON of kube-scheduler's HTTP extender (k8s.io/kube-scheduler/extender/v1).

The Go structs carry no JSON tags: keys are Go's field names, and nil is ``null``. Embedded objects are ordinary
core/v1 JSON.
"""

import msgspec

from gputile.api.core import Pod


class _ExtenderMessage(msgspec.Struct, rename="pascal", gc=False, kw_only=True):
    """Keys in Go's spelling."""


class ExtenderArgs(_ExtenderMessage):
    """What ``filter`` and ``prioritize`` get. ``node_names`` is None unless the extender is nodeCacheCapable."""

    pod: Pod
    node_names: list[str] | None = None


class FilterResult(_ExtenderMessage):
    """The answer to ``filter``. What is in ``failed_and_unresolvable_nodes`` is not worth preempting for."""

    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(_ExtenderMessage):
    """One node's score, 0 to 10, in the answer to ``prioritize``."""

    host: str
    score: int


class ExtenderBindingArgs(_ExtenderMessage):
    """What ``bind`` gets."""

    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class ExtenderBindingResult(_ExtenderMessage):
    """The answer to ``bind``; an empty error means that the pod is bound."""

    error: str = ""


class MetaPod(_ExtenderMessage):
    """A victim by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(_ExtenderMessage):
    """The victims on one node, and how many PodDisruptionBudgets their eviction violates."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class Victims(_ExtenderMessage):
    """As ``MetaVictims``, with whole pods: what an extender gets that is not nodeCacheCapable."""

    pods: list[Pod] | None = None
    num_pdb_violations: int = msgspec.field(default=0, name="NumPDBViolations")


class ExtenderPreemptionArgs(_ExtenderMessage):
    """What ``preempt`` gets: for each candidate node the victims that the in-tree plugins chose."""

    pod: Pod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class ExtenderPreemptionResult(_ExtenderMessage):
    """The answer to ``preempt``: always by UID."""

    node_name_to_meta_victims: dict[str, MetaVictims]
