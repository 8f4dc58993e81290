"""Applies the bounds of HorizontalPodAutoscalers, in the files or the cluster, to their targets.

An autoscaler keeps the number of pods within its bounds without any metric (pkg/controller/podautoscaler of
Kubernetes); how many it asks for within them depends on load, which nobody knows here. Of 0 pods it makes no more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from gputile.tools.simulator.cluster.owners import Owner, owner_in
from gputile.tools.simulator.documents.manifests import Manifest
from gputile.tools.simulator.rules.workloads.pod_kinds import PodKind

_KIND: Final = "HorizontalPodAutoscaler"
SCALABLE: Final = ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet")
_REPLICAS: Final = "spec.replicas"
_DEFAULT: Final = 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """The fewest and the most pods, and the name of the autoscaler that keeps them."""

    least: int
    most: int
    name: str


def written_bounds(manifests: Iterable[Manifest]) -> dict[Owner, Bounds]:
    """Return the bounds by their targets; an autoscaler that cannot be read has none, and is refused elsewhere."""
    found: dict[Owner, Bounds] = {}
    for manifest in manifests:
        spec = manifest.body.get("spec")
        if manifest.kind != _KIND or manifest.group != "autoscaling" or not isinstance(spec, dict):
            continue
        target, least, most = spec.get("scaleTargetRef"), spec.get("minReplicas", _DEFAULT), spec.get("maxReplicas")
        if isinstance(target, dict) and _is_number(least) and _is_number(most) and least <= most:
            group = str(target.get("apiVersion", "")).rpartition("/")[0]
            namespace, name = manifest.namespaced_name
            scaled_one = Owner(group, str(target.get("kind")), namespace, str(target.get("name")))
            found[scaled_one] = Bounds(least, most, name)
    return found


def scaled(manifest: Manifest, bounds: Mapping[Owner, Bounds], kind: PodKind | None) -> tuple[Manifest, str]:
    """Return ``manifest`` with as many replicas as its autoscaler keeps, and what is to say of that, "" for nothing.

    ``kind`` is what the table says of its kind, if that is not Kubernetes' own.
    """
    counted = (count.path for rule in kind.pods for count in rule.counts()) if kind is not None else ()
    if not bounds or (manifest.kind not in SCALABLE if kind is None else _REPLICAS not in counted):
        return manifest, ""
    found = bounds.get(owner_in(manifest))
    spec = manifest.body.get("spec")
    if found is None or not isinstance(spec, dict):
        return manifest, ""
    replicas = spec.get("replicas", _DEFAULT)
    if not _is_number(replicas) or replicas == 0:
        return manifest, ""
    kept = min(max(replicas, found.least), found.most)
    within = f"{_KIND}/{found.name} keeps it at {found.least} to {found.most} replicas"
    if kept == replicas:
        return manifest, f"{within}: the {kept} that it says are placed" if found.most > kept else ""
    said = f"{within}: {kept} are placed, and it says {replicas}"
    return replace(manifest, body=manifest.body | {"spec": spec | {"replicas": kept}}), said


def targets(manifests: Iterable[Manifest]) -> set[Owner]:
    """Return what autoscalers among ``manifests`` scale."""
    return set(written_bounds(manifests))


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
