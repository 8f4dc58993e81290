"""Defines coordination.k8s.io/v1 Leases as far as they are read."""

import msgspec

from gputile.api.core import ObjectMeta


class LeaseSpec(msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True):
    """coordination.k8s.io/v1 LeaseSpec: who holds it, None or "" for nobody, and how often it has changed hands."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, gc=False, omit_defaults=True, kw_only=True):
    """coordination.k8s.io/v1 Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
