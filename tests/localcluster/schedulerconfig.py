"""The KubeSchedulerConfiguration of a kube-scheduler under test."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

ALL_NODES = 100


class ManagedResource(TypedDict, total=False):
    """A resource that brings a pod to the extender; ``ignoredByScheduler`` leaves its counting to the extender."""

    name: str
    ignoredByScheduler: bool


class SchedulerOptions(TypedDict, total=False):
    """What can be set; see ``DEFAULTS`` for what holds otherwise."""

    managed_resources: Sequence[ManagedResource]  # empty: the extender is asked about every pod
    prioritize: bool
    pods_without_gpus: bool  # rank nodes for them too
    bind: bool
    preempt: bool
    weight: int
    ignorable: bool
    node_cache_capable: bool  # False: whole Node objects are sent
    http_timeout: float  # seconds
    extender_ca: Path | None  # for an https address
    percentage_of_nodes_to_score: int
    kube_api_qps: float
    lease_seconds: float  # 0: no leader election
    scheduler_name: str  # which pods it takes: their spec.schedulerName
    profile: Mapping[str, Any]  # more of the profile: plugins, pluginConfig
    extra: Mapping[str, Any]  # more of the whole configuration


DEFAULTS: SchedulerOptions = {
    "managed_resources": (),
    "prioritize": True,
    "pods_without_gpus": False,
    "bind": False,
    "preempt": False,
    "weight": 1,
    "ignorable": False,
    "node_cache_capable": True,
    "http_timeout": 5.0,
    "extender_ca": None,
    "percentage_of_nodes_to_score": ALL_NODES,
    "kube_api_qps": 5000,
    "lease_seconds": 0.0,
    "scheduler_name": "default-scheduler",
    "profile": {},
    "extra": {},
}


def scheduler_configuration(kubeconfig: Path, extender_url: str | None, options: SchedulerOptions) -> dict[str, Any]:
    """Return the configuration; ``extender_url`` is what the verbs are appended to, None for no extender."""
    chosen: SchedulerOptions = {**DEFAULTS, **options}
    qps = chosen["kube_api_qps"]
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": qps, "burst": int(qps)},
        "leaderElection": _leader_election(chosen["lease_seconds"]),
        "percentageOfNodesToScore": chosen["percentage_of_nodes_to_score"],
        "profiles": [{"schedulerName": chosen["scheduler_name"], **chosen["profile"]}],
        "extenders": [] if extender_url is None else _extenders(extender_url, chosen),
        **chosen["extra"],
    }


def _leader_election(lease_seconds: float) -> dict[str, Any]:
    """Return the usual proportions (15 s: 10 s, 2 s) at the length wanted; all compete for the lease kube-scheduler."""
    if not lease_seconds:
        return {"leaderElect": False}
    # A Lease counts in whole seconds.
    return {
        "leaderElect": True,
        "resourceName": "kube-scheduler",
        "resourceNamespace": "kube-system",
        "leaseDuration": f"{max(1, round(lease_seconds))}s",
        "renewDeadline": f"{round(lease_seconds * 1000 * 2 / 3)}ms",
        "retryPeriod": f"{round(lease_seconds * 1000 * 2 / 15)}ms",
    }


def _extenders(url: str, chosen: SchedulerOptions) -> list[dict[str, Any]]:
    extender = _extender(url, chosen)
    if not chosen["pods_without_gpus"]:
        return [extender]
    gpu_pods_only = ("filterVerb", "bindVerb", "preemptVerb", "managedResources", "ignorable")
    others = {key: value for key, value in extender.items() if key not in gpu_pods_only}
    return [extender, others | {"prioritizeVerb": "prioritize-without-gpus"}]


def _extender(url: str, chosen: SchedulerOptions) -> dict[str, Any]:
    extender: dict[str, Any] = {
        "urlPrefix": url,
        "filterVerb": "filter",
        "weight": chosen["weight"],
        "httpTimeout": f"{round(chosen['http_timeout'] * 1000)}ms",
        "nodeCacheCapable": chosen["node_cache_capable"],
        "ignorable": chosen["ignorable"],
        "managedResources": [dict(resource) for resource in chosen["managed_resources"]],
    }
    verbs = {"prioritize": chosen["prioritize"], "bind": chosen["bind"], "preempt": chosen["preempt"]}
    extender |= {f"{verb}Verb": verb for verb, wanted in verbs.items() if wanted}
    if url.startswith("https:"):
        authority = chosen["extender_ca"]
        extender |= {"enableHTTPS": True, "tlsConfig": {"caFile": str(authority)} if authority else {"insecure": True}}
    return extender
