"""Defines affinity and topology spread constraints of pods (core/v1).

Operators and effects are plain strings, so that objects of a newer API server can be decoded. They
are validated where they are evaluated.
"""

import msgspec


class _Rule(
    msgspec.Struct, rename="camel", gc=False, omit_defaults=True, frozen=True, kw_only=True
):
    """Common settings of the rules; frozen, because pods of one template share them."""


class NodeSelectorRequirement(_Rule, frozen=True):
    """core/v1 NodeSelectorRequirement."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(_Rule, frozen=True):
    """core/v1 NodeSelectorTerm: all requirements must match; an empty term matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(_Rule, frozen=True):
    """core/v1 NodeSelector: one of the terms must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(_Rule, frozen=True):
    """core/v1 PreferredSchedulingTerm."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(_Rule, frozen=True):
    """core/v1 NodeAffinity."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class LabelSelectorRequirement(_Rule, frozen=True):
    """metav1.LabelSelectorRequirement."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(_Rule, frozen=True):
    """metav1.LabelSelector. An empty one selects everything, an absent one nothing."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class PodAffinityTerm(_Rule, frozen=True):
    """core/v1 PodAffinityTerm."""

    label_selector: LabelSelector | None = None
    topology_key: str = ""
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class PodAffinity(_Rule, frozen=True):
    """core/v1 PodAffinity and PodAntiAffinity: the required terms."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(_Rule, frozen=True):
    """core/v1 Affinity."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(_Rule, frozen=True):
    """core/v1 TopologySpreadConstraint."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()
