"""Defines coordination.k8s.io/v1 Leases as far as they are read."""

import msgspec

from gputile.api.core import ObjectMeta
from gputile.api.wire_object import WireObject


class LeaseSpec(WireObject):
    """coordination.k8s.io/v1 LeaseSpec: who holds it, None or "" for nobody, and how often it has changed hands."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class Lease(WireObject):
    """coordination.k8s.io/v1 Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
