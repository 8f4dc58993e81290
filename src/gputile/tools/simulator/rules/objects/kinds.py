"""Checks the objects that stand beside workloads in files of manifests, kind by kind."""

from collections.abc import Callable, Iterator
from typing import Final

from gputile.tools.simulator.rules.objects.access import (
    broken_cluster_role,
    broken_cluster_role_binding,
    broken_role,
    broken_role_binding,
)
from gputile.tools.simulator.rules.objects.autoscalers import broken_autoscaler
from gputile.tools.simulator.rules.objects.classes import (
    broken_ingress_class,
    broken_priority_class,
    broken_runtime_class,
    broken_storage_class,
)
from gputile.tools.simulator.rules.objects.config_and_secrets import broken_config_map, broken_secret
from gputile.tools.simulator.rules.objects.networks import broken_ingress, broken_network_policy
from gputile.tools.simulator.rules.objects.quotas import broken_limit_range, broken_quota
from gputile.tools.simulator.rules.objects.security_levels import broken_security_levels
from gputile.tools.simulator.rules.objects.services import broken_service
from gputile.tools.simulator.rules.pods.claims import broken_claim
from gputile.tools.simulator.rules.values.fields import Broken, Json


def values_are_judged(kind: str) -> bool:
    """Return whether the values of a kind that makes no pods are judged, and not only its fields."""
    return kind in _KINDS or kind == "PodTemplate"


def broken_beside_workloads(kind: str, body: Json) -> Iterator[Broken]:
    """Yield what is wrong with an object of a kind that makes no pods, where more than one field counts."""
    if kind in _KINDS:
        yield from _KINDS[kind](body)


def _budget(body: Json) -> Iterator[Broken]:
    if {"minAvailable", "maxUnavailable"} <= body.get("spec", {}).keys():
        yield "spec", "Invalid value: minAvailable and maxUnavailable cannot be both set"


def _claim(body: Json) -> Iterator[Broken]:
    yield from broken_claim("spec", body.get("spec", {}))


def _namespace(body: Json) -> Iterator[Broken]:
    yield from broken_security_levels("metadata.labels", body.get("metadata", {}).get("labels", {}))


def _nothing(_: Json) -> Iterator[Broken]:
    """Yield nothing: of this kind an API server judges the metadata and the fields only."""
    yield from ()


_KINDS: Final[dict[str, Callable[[Json], Iterator[Broken]]]] = {
    "ClusterRole": broken_cluster_role,
    "ClusterRoleBinding": broken_cluster_role_binding,
    "ConfigMap": broken_config_map,
    "HorizontalPodAutoscaler": broken_autoscaler,
    "Ingress": broken_ingress,
    "IngressClass": broken_ingress_class,
    "LimitRange": broken_limit_range,
    "Namespace": _namespace,
    "NetworkPolicy": broken_network_policy,
    "PersistentVolumeClaim": _claim,
    "PodDisruptionBudget": _budget,
    "PriorityClass": broken_priority_class,
    "ResourceQuota": broken_quota,
    "Role": broken_role,
    "RoleBinding": broken_role_binding,
    "RuntimeClass": broken_runtime_class,
    "Secret": broken_secret,
    "Service": broken_service,
    "ServiceAccount": _nothing,
    "StorageClass": broken_storage_class,
}
