"""Checks which fields of stored objects cannot be changed (k8s.io/kubernetes, pkg/apis/*/validation).

The table has the kinds of which an API server refuses changes, with the fields as far as they are the same for all of
its objects. What depends on the object's state is in functions.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.well_known import GPU_RESOURCES
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.updates.differences import Path, changed_paths, last_applied
from gputile.tools.simulator.updates.gated_pods import narrows


@dataclass(frozen=True, slots=True)
class _Kind:
    """The fields of a kind that cannot change, or with ``only`` those that can; the names of their steps."""

    version: str
    fixed: tuple[str, ...] = ()
    free: tuple[str, ...] = ()


_SELECTED: Final = _Kind("apps/v1", fixed=("spec.selector",))
_KINDS: Final[Mapping[str, _Kind]] = {
    "Pod": _Kind("v1", fixed=("spec",), free=("spec.containers.image", "spec.initContainers.image")),
    "Job": _Kind(
        "batch/v1",
        fixed=(
            *("spec.template", "spec.selector", "spec.completions", "spec.completionMode", "spec.podFailurePolicy"),
            *("spec.backoffLimitPerIndex", "spec.successPolicy", "spec.managedBy"),
        ),
    ),
    "StatefulSet": _Kind(
        "apps/v1",
        fixed=("spec",),
        free=(
            *("spec.replicas", "spec.ordinals", "spec.template", "spec.updateStrategy", "spec.revisionHistoryLimit"),
            *("spec.persistentVolumeClaimRetentionPolicy", "spec.minReadySeconds"),
        ),
    ),
    "Deployment": _SELECTED,
    "DaemonSet": _SELECTED,
    "ReplicaSet": _SELECTED,
    "PersistentVolumeClaim": _Kind("v1", fixed=("spec",), free=("spec.volumeAttributesClassName",)),
    "Service": _Kind(
        "v1", fixed=("spec.clusterIP", "spec.clusterIPs", "spec.loadBalancerClass", "spec.healthCheckNodePort")
    ),
    "ConfigMap": _Kind("v1"),
    "Secret": _Kind("v1", fixed=("type",)),
    "RoleBinding": _Kind("rbac.authorization.k8s.io/v1", fixed=("roleRef",)),
    "ClusterRoleBinding": _Kind("rbac.authorization.k8s.io/v1", fixed=("roleRef",)),
    "StorageClass": _Kind(
        "storage.k8s.io/v1", fixed=("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
    ),
    "PriorityClass": _Kind("scheduling.k8s.io/v1", fixed=("value", "preemptionPolicy")),
    "RuntimeClass": _Kind("node.k8s.io/v1", fixed=("handler",)),
    "IngressClass": _Kind("networking.k8s.io/v1", fixed=("spec.controller",)),
    "ResourceQuota": _Kind("v1", fixed=("spec.scopes",)),
    "PodDisruptionBudget": _Kind("policy/v1"),
}
_CLUSTER_WIDE: Final = ("ClusterRoleBinding", "StorageClass", "PriorityClass", "RuntimeClass", "IngressClass")
# What a Job's template may change while the Job is suspended and has not started.
_OF_SUSPENDED: Final = tuple(
    f"spec.template.{each}"
    for each in (
        *("metadata.labels", "metadata.annotations", "spec.nodeSelector", "spec.affinity", "spec.tolerations"),
        *("spec.schedulingGates", "spec.containers.resources", "spec.initContainers.resources"),
    )
)
_DATA: Final = ("data", "binaryData", "immutable")
_ADDED_KEYS: Final = ("node.kubernetes.io/", *GPU_RESOURCES)  # of tolerations that API servers and webhooks add


def path_of(api_version: str, kind: str, namespace: str, name: str) -> str:
    """Return where an API server has an object of a kind some of whose changes it refuses, "" for other kinds."""
    known = _KINDS.get(kind)
    if known is None or known.version != api_version or not name:
        return ""
    prefix = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    within = "" if kind in _CLUSTER_WIDE else f"/namespaces/{quote(namespace, safe='')}"
    return f"{prefix}{within}/{kind.lower()}{'es' if kind.endswith('s') else 's'}/{quote(name, safe='')}"


def broken_changes(kind: str, written: Json, stored: Json) -> Iterator[Broken]:
    """Yield the fields of a valid object that cannot be changed as ``written``, from how they are ``stored``."""
    known, before = _KINDS[kind], last_applied(stored)
    free = known.free
    if kind == "Job" and stored.get("spec", {}).get("suspend") and not stored.get("status", {}).get("startTime"):
        free = _OF_SUSPENDED
    fixed = _DATA if kind in ("ConfigMap", "Secret") and stored.get("immutable") else ()
    told: set[str] = set()
    for path in changed_paths(_comparable(kind, written), stored, before):
        names = ".".join(step for step in path if isinstance(step, str))
        of_table = any(_is_in(names, each) for each in (*known.fixed, *fixed))
        if not of_table or any(_is_in(names, each) for each in free) or _may_change(kind, path, written, stored):
            continue
        where = _written(path)
        if where not in told:
            told.add(where)
            rule = f"it is in the cluster, and this field of a {kind} cannot be changed: delete it first, or rename it"
            yield where, f"Forbidden: {rule}"
    if kind == "Pod" and "spec.tolerations" not in told and (lost := _lost_tolerations(written, stored)):
        yield "spec.tolerations", f"Forbidden: it is in the cluster, and a Pod's toleration {lost} cannot be removed"


def template_changes(kind: str, written: Json, stored: Json) -> bool:
    """Return whether a workload's template of pods becomes another one, so that its controller replaces them."""
    if kind not in ("DaemonSet", "Deployment", "StatefulSet"):
        return False
    if kind != "Deployment" and stored.get("spec", {}).get("updateStrategy", {}).get("type") == "OnDelete":
        return False
    paths = changed_paths(written, stored, last_applied(stored))
    return any(path[:2] == ("spec", "template") for path in paths)


def _is_in(names: str, place: str) -> bool:
    return names == place or names.startswith(f"{place}.")


def _written(path: Path) -> str:
    text = ""
    for step in path:
        named = isinstance(step, str) and step.isidentifier()
        text += (f".{step}" if text else str(step)) if named else f"[{json.dumps(step)}]"
    return text


def _comparable(kind: str, written: Json) -> Json:
    """Return an object in the form in which it is stored: a Secret's ``stringData`` is in its ``data``."""
    if kind != "Secret" or "stringData" not in written:
        return written
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in written["stringData"].items()}
    rest = {key: value for key, value in written.items() if key != "stringData"}
    return {**rest, "data": {**written.get("data", {}), **encoded}}


def _may_change(kind: str, path: Path, written: Json, stored: Json) -> bool:
    """Return whether this change of a field that else is fixed is one that an API server takes."""
    if kind == "Pod" and len(path) > 1 and narrows(path, written, stored):
        return True
    rule = _RULES.get((kind, str(path[1]) if len(path) > 1 else ""))
    return rule is not None and rule(written, stored)


def _spec(body: Json) -> Json:
    found: Json = body.get("spec", {})
    return found


def _deadline(written: Json, stored: Json) -> bool:
    new, old = _spec(written).get("activeDeadlineSeconds"), _spec(stored).get("activeDeadlineSeconds")
    return new is not None and (old is None or new <= old)


def _tolerations(written: Json, stored: Json) -> bool:
    return not _lost_tolerations(written, stored)


def _gates(written: Json, stored: Json) -> bool:
    """Return whether there is no new gate: a pod only loses its gates."""
    had = {each["name"] for each in _spec(stored).get("schedulingGates", ())}
    return {each["name"] for each in _spec(written).get("schedulingGates", ())} <= had


def _completions(written: Json, stored: Json) -> bool:
    new = _spec(written)
    return _spec(stored).get("completionMode") == "Indexed" and new.get("completions") == new.get("parallelism")


def _volume(_written: Json, stored: Json) -> bool:
    return not _spec(stored).get("volumeName")


def _class(_written: Json, stored: Json) -> bool:
    """Return whether a claim has neither a class nor a volume yet."""
    return "storageClassName" not in _spec(stored) and not _spec(stored).get("volumeName")


def _storage(written: Json, stored: Json) -> bool:
    """Return whether a claim that has its volume asks for no less than it has."""
    new = _spec(written)["resources"].get("requests", {}).get("storage", 0)
    status = stored.get("status", {})
    try:
        enough = parse_quantity(new) >= parse_quantity(status.get("capacity", {}).get("storage", 0))
    except (QuantityError, TypeError):
        return False
    return enough and status.get("phase") == "Bound"


def _external(written: Json, stored: Json) -> bool:
    """Return whether a Service's addresses can change: those of a name outside of the cluster are given and taken."""
    return "ExternalName" in (_spec(written).get("type"), _spec(stored).get("type"))


def _other_balancer(written: Json, stored: Json) -> bool:
    return any(_spec(each).get("type") != "LoadBalancer" for each in (written, stored))


def _other_traffic(written: Json, stored: Json) -> bool:
    local = all(_spec(each).get("externalTrafficPolicy") == "Local" for each in (written, stored))
    return not local or _other_balancer(written, stored)


_RULES: Final[Mapping[tuple[str, str], Callable[[Json, Json], bool]]] = {
    ("Pod", "activeDeadlineSeconds"): _deadline,
    ("Pod", "tolerations"): _tolerations,
    ("Pod", "schedulingGates"): _gates,
    ("Job", "completions"): _completions,
    ("PersistentVolumeClaim", "volumeName"): _volume,
    ("PersistentVolumeClaim", "storageClassName"): _class,
    ("PersistentVolumeClaim", "resources"): _storage,
    ("Service", "clusterIP"): _external,
    ("Service", "clusterIPs"): _external,
    ("Service", "loadBalancerClass"): _other_balancer,
    ("Service", "healthCheckNodePort"): _other_traffic,
}


def _lost_tolerations(written: Json, stored: Json) -> str:
    """Return a key of a stored pod's toleration that is not written, "" where all are, or are an API server's own."""
    kept = [_toleration(each) for each in written.get("spec", {}).get("tolerations", ())]
    for each in stored.get("spec", {}).get("tolerations", ()):
        key = each.get("key", "")
        if _toleration(each) not in kept and not (key and key.startswith(_ADDED_KEYS)):
            return f'"{key[:80]}"' if key else "of everything"
    return ""


def _toleration(written: Json) -> Json:
    """Return what of a toleration cannot change; how long it goes for can."""
    fields = {key: value for key, value in written.items() if value not in ("", None) and key != "tolerationSeconds"}
    return {"operator": "Equal", **fields}
