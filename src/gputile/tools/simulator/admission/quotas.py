"""Tells whether the pods of the files ask for more than the ResourceQuotas in the files allow.

What else is in the cluster is not known, so this is what is exceeded in any case. A quota with scopes, the class of a
claim that names none, and objects that are not Kubernetes' own are left out. Where a quota counts CPU or memory, each
container of a new pod has to name it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gputile.api.core import Container, Pod, PodSpec, ResourceRequirements
from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.core.kube_predicates.pod_requests import CPU, PODS, pod_requests
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError

_PODS: Final = ("pods", "count/pods")
_ALONE: Final = (CPU, "memory", "ephemeral-storage", "hugepages-")  # the same as with "requests." before them
_REQUESTS: Final = "requests."
_LIMITS: Final = "limits."
_NOT_OF_PODS: Final = ("requests.storage",)
_OF_CLASS: Final = ".storageclass.storage.k8s.io/"
_PER_CORE: Final = 1000
_NAMED: Final = frozenset(f"{kind}{name}" for kind in ("", _REQUESTS, _LIMITS) for name in (CPU, "memory"))
_MOST_NAMED: Final = 5
# What controllers put into each namespace; one in a file is no second one.
_EVERYWHERE: Final = {
    **dict.fromkeys(("configmaps", "count/configmaps"), "kube-root-ca.crt"),
    **dict.fromkeys(("serviceaccounts", "count/serviceaccounts"), "default"),
}


def has_scopes(manifest: Manifest) -> bool:
    """Return whether a valid ResourceQuota counts only some of the pods."""
    spec = manifest.body.get("spec", {})
    return bool(spec.get("scopes") or spec.get("scopeSelector", {}).get("matchExpressions"))


def unnamed(manifests: Iterable[Manifest], pods: Iterable[Pod]) -> Iterator[ManifestError]:
    """Yield which new ``pods`` do not say how much they take of what ResourceQuotas among ``manifests`` count.

    A pod that asks as a whole need not say it of its containers. Pods of one owner are alike, so one of them is told.
    """
    manifests = list(manifests)
    counted = [(quota, wanted) for quota in _quotas(manifests) if (wanted := _NAMED & _hard(quota).keys())]
    stored = {_key(each) for each in manifests if each.stored and each.kind == "Pod"} if counted else set()
    by_namespace: dict[str, dict[str, Manifest]] = {}  # what is counted, and the first quota that does
    for quota, wanted in counted:
        here = by_namespace.setdefault(_namespace(quota), {})
        for name in sorted(wanted):
            here.setdefault(name, quota)
    judged: set[tuple[str, int]] = set()
    for pod in pods if counted else ():
        alike = next((each.uid for each in pod.metadata.owner_references), pod.metadata.uid), id(pod.spec.containers)
        if pod.finished or pod.spec.resources is not None or pod.key in stored or alike in judged:
            continue
        judged.add(alike)
        for name, quota in by_namespace.get(pod.metadata.namespace, {}).items():
            lacking = [each.name for each in _containers(pod) if not _names(each, name)]
            if lacking:
                said = f"failed quota: pod {pod.key} must specify {name} for: {', '.join(lacking[:_MOST_NAMED])}"
                yield quota.origin.error(f"spec.hard[{shown(name)}]", said)


def exceeded(
    manifests: Iterable[Manifest], pods: Iterable[Pod], made: Iterable[tuple[Manifest, int]] = ()
) -> Iterator[ManifestError]:
    """Yield which amounts of the ResourceQuotas among valid ``manifests`` these and the ``pods`` exceed.

    ``made`` is what controllers make of the manifests beside pods: an object, and how many there are like it.
    """
    manifests = list(manifests)
    quotas = _quotas(manifests)
    asked = _asked(pods) if quotas else {}
    objects = _objects([*((each, 1) for each in manifests), *made]) if quotas else {}
    for quota in quotas:
        namespace = _namespace(quota)
        used, there = asked.get(namespace, Counter()), objects.get(namespace, Counter())
        for name, written in _hard(quota).items():
            resource = _counted(name)
            in_cores = resource in (CPU, f"{_LIMITS}{CPU}")
            most = parse_quantity(written) * (_PER_CORE if in_cores else 1)
            said = ""
            if resource and used[resource] > most:
                verb = "have limits of" if resource.startswith(_LIMITS) else "are" if resource == PODS else "request"
                amount = f"{used[resource]}{'m' if in_cores else ''}"
                said = f"exceeded quota: the files' pods in {namespace} {verb} {amount}"
            elif not resource and there[name] > most:
                with_it = f" with {_EVERYWHERE[name]}, which each namespace has," if name in _EVERYWHERE else ""
                said = f"exceeded quota: what the files have of it in {namespace}{with_it} is {there[name]}"
            if said:
                yield quota.origin.error(f"spec.hard[{shown(name)}]", f"{said}, and {written} may be")


def _quotas(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the ResourceQuotas that count all pods of their namespace."""
    found = (each for each in manifests if (each.kind, each.api_version) == ("ResourceQuota", "v1"))
    return [each for each in found if not has_scopes(each)]


def _hard(quota: Manifest) -> Mapping[str, Any]:
    """Return how much of what may be used."""
    found: Mapping[str, Any] = quota.body.get("spec", {}).get("hard", {})
    return found


def _namespace(manifest: Manifest) -> str:
    return str(manifest.body.get("metadata", {}).get("namespace") or "default")


def _key(manifest: Manifest) -> str:
    return f"{_namespace(manifest)}/{manifest.body.get('metadata', {}).get('name', '')}"


def _containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.containers, *pod.spec.init_containers)


def _names(container: Container, counted: str) -> bool:
    """Return whether a container says how much it takes of what a quota counts; a limit is a request, too."""
    resources, name = container.resources, counted.rpartition(".")[2]
    return name in resources.limits or (not counted.startswith(_LIMITS) and name in resources.requests)


def _asked(pods: Iterable[Pod]) -> dict[str, Counter[str]]:
    """Return what the pods take that are not finished, by namespace."""
    found: dict[str, Counter[str]] = {}
    for pod in pods:
        if not pod.finished:
            limits = {f"{_LIMITS}{name}": amount for name, amount in _limits(pod.spec).items()}
            used = found.setdefault(pod.metadata.namespace, Counter())
            used.update({**pod_requests(pod.spec, pod.status), **limits, PODS: 1})
    return found


def _limits(spec: PodSpec) -> Mapping[str, int]:
    """Return what a pod is limited to, with its RuntimeClass's overhead of what is: ``PodLimits`` of Kubernetes."""
    limits = pod_requests(_by_limits(spec))
    overhead = pod_requests(PodSpec(overhead=spec.overhead))
    return {name: amount + overhead.get(name, 0) for name, amount in limits.items()}


def _by_limits(spec: PodSpec) -> PodSpec:
    """Return a spec whose pods request what they are limited to, without overhead."""
    whole = spec.resources and ResourceRequirements(limits=spec.resources.limits, requests=spec.resources.limits)
    kinds = {
        kind: tuple(
            msgspec.structs.replace(each, resources=ResourceRequirements(limits=each.resources.limits))
            for each in containers
        )
        for kind, containers in (("containers", spec.containers), ("init_containers", spec.init_containers))
    }
    return msgspec.structs.replace(spec, resources=whole, overhead={}, **kinds)


def _objects(there: Iterable[tuple[Manifest, int]]) -> dict[str, Counter[str]]:
    """Return how much of what else a quota counts is ``there``, by namespace; each object so many times."""
    found: dict[str, Counter[str]] = {}
    for each, times in there:
        if each.kind not in kubernetes_kinds().kinds.get(each.api_version, {}):
            continue
        used, spec = found.setdefault(_namespace(each), Counter()), each.body.get("spec", {})
        for name in _names_of(each):
            always = _EVERYWHERE.get(name)
            if always is None or always != each.body.get("metadata", {}).get("name"):
                used[name] += times + (always is not None and name not in used)
        if each.kind == "PersistentVolumeClaim":
            storage = spec.get("resources", {}).get("requests", {}).get("storage", 0)
            amounts = {"requests.storage": times * math.ceil(parse_quantity(storage)), "persistentvolumeclaims": times}
            used["requests.storage"] += amounts["requests.storage"]
            used.update(
                {f"{spec.get('storageClassName', '')}{_OF_CLASS}{name}": each for name, each in amounts.items()}
            )
        elif each.kind == "Service":
            balanced = spec.get("type") == "LoadBalancer"
            used["services.loadbalancers"] += balanced
            opened = spec.get("type") == "NodePort" or (balanced and spec.get("allocateLoadBalancerNodePorts", True))
            used["services.nodeports"] += len(spec.get("ports", ())) if opened else 0
    return found


def _names_of(manifest: Manifest) -> list[str]:
    """Return under which names a quota counts an object of one of Kubernetes' kinds."""
    name = manifest.kind.lower()
    if name.endswith(("cy", "ty")):
        plural = f"{name[:-1]}ies"
    elif name.endswith("points"):
        plural = name
    else:
        plural = f"{name}{'es' if name.endswith('s') else 's'}"
    group = f".{manifest.group}" if manifest.group else ""
    return [f"count/{plural}{group}", *(() if group else (plural,))]


def _counted(name: str) -> str:
    """Return the resource that an amount of a quota bounds the requests of, "" where it bounds something else."""
    if name in _PODS:
        return PODS
    if name.startswith(_LIMITS):
        return name
    if name in _NOT_OF_PODS or _OF_CLASS in name:
        return ""
    return name.removeprefix(_REQUESTS) if name.startswith((_REQUESTS, *_ALONE)) else ""
