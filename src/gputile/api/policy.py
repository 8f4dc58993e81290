"""Defines the part of policy/v1 that gputile reads."""

import msgspec

from gputile.api.affinity import LabelSelector
from gputile.api.core import ObjectMeta


class _BudgetSpec(msgspec.Struct, rename="camel"):
    selector: LabelSelector | None = None


class _BudgetStatus(msgspec.Struct, rename="camel"):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None  # by name: when their eviction began


class PodDisruptionBudget(msgspec.Struct, rename="camel", kw_only=True):
    """policy/v1 PodDisruptionBudget: how many of the pods that it selects may be evicted now."""

    metadata: ObjectMeta
    spec: _BudgetSpec = msgspec.field(default_factory=_BudgetSpec)
    status: _BudgetStatus = msgspec.field(default_factory=_BudgetStatus)
