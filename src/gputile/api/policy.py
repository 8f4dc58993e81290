"""Defines the part of policy/v1 that gputile reads."""

import msgspec

from gputile.api.affinity import LabelSelector
from gputile.api.core import ObjectMeta


class _BudgetSpec(msgspec.Struct, rename="camel"):
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = ""


class _BudgetStatus(msgspec.Struct, rename="camel"):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    disrupted_pods: dict[str, str] | None = None  # by name: when their eviction began


class PodDisruptionBudget(msgspec.Struct, rename="camel", kw_only=True):
    """policy/v1 PodDisruptionBudget: how many of the pods that it selects may be evicted now."""

    metadata: ObjectMeta
    spec: _BudgetSpec = msgspec.field(default_factory=_BudgetSpec)
    status: _BudgetStatus = msgspec.field(default_factory=_BudgetStatus)

    @property
    def lets_unready_go(self) -> bool:
        """Whether a pod that is not ready may be evicted however few may be disrupted: it is not counted as healthy.

        By KEP-3017, as ``EvictionREST`` of the API server has it; without a policy it is ``IfHealthyBudget``.
        """
        always = self.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"
        return always or self.status.current_healthy >= self.status.desired_healthy > 0
