"""Defines slim objects of other API groups than core: Leases, PodGroups and PodDisruptionBudgets."""

from typing import Final

import msgspec

from gputile.api.affinity import LabelSelector
from gputile.api.conversion import WireObject
from gputile.api.core import ObjectMeta

POD_GROUP_API: Final = "scheduling.x-k8s.io"
POD_GROUP_API_PATH: Final = f"/apis/{POD_GROUP_API}/v1alpha1"  # 404 where no kind of the group is installed
POD_GROUPS_PATH: Final = f"{POD_GROUP_API_PATH}/podgroups"


class LeaseSpec(WireObject):
    """coordination.k8s.io/v1 LeaseSpec: who holds it (None or "" for nobody), its changes and renewal."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class Lease(WireObject):
    """coordination.k8s.io/v1 Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class PodGroupSpec(msgspec.Struct, rename="camel", gc=False):
    """The part of a PodGroup's spec that says how many pods start together."""

    min_member: int = 0


class PodGroup(msgspec.Struct, rename="camel", gc=False):
    """scheduling.x-k8s.io/v1alpha1 PodGroup."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


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
