"""The command lines of the control plane's programs, and the KubeSchedulerConfiguration of one under test."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from gputile.api.well_known import CLAIMS_RESOURCE
from tests.localcluster.identities import KeyPair
from tests.localcluster.machine import LOOPBACK

# Nodes without a kubelet send no heartbeat: a day passes before one is found missing.
NODE_GRACE = "24h"
ALL_NODES = 100
API_QPS = 5000


def etcd(program: Path, data: Path, port: int, peer_port: int) -> list[str]:
    """Return the command of an etcd that does not wait for the disk: nothing here outlives a power cut."""
    peer = f"http://{LOOPBACK}:{peer_port}"
    return [
        str(program),
        f"--data-dir={data}",
        f"--listen-client-urls=http://{LOOPBACK}:{port}",
        f"--advertise-client-urls=http://{LOOPBACK}:{port}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--heartbeat-interval=10",
        "--election-timeout=100",
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
    ]


def apiserver(
    program: Path,
    *,
    port: int,
    etcd_port: int,
    authority: Path,
    serving: KeyPair,
    kubelet_client: KeyPair,
    service_account_key: Path,
) -> list[str]:
    """Return the command of a kube-apiserver with the authorisation and admission of an ordinary cluster."""
    return [
        str(program),
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
        f"--client-ca-file={authority}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--kubelet-client-certificate={kubelet_client.certificate}",
        f"--kubelet-client-key={kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={service_account_key}",
        f"--service-account-signing-key-file={service_account_key}",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]


def controller_manager(program: Path, *, kubeconfig: Path, authority: Path, service_account_key: Path) -> list[str]:
    """Return the command of a kube-controller-manager that leaves nodes without a kubelet Ready."""
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        f"--root-ca-file={authority}",
        f"--service-account-private-key-file={service_account_key}",
        f"--node-monitor-grace-period={NODE_GRACE}",
    ]


def scheduler(program: Path, *, configuration: Path, port: int) -> list[str]:
    """Return the command of a kube-scheduler, which serves its health and metrics at ``port``."""
    return [str(program), f"--config={configuration}", f"--bind-address={LOOPBACK}", f"--secure-port={port}"]


class ManagedResource(TypedDict, total=False):
    """A resource that brings a pod to the extender; ``ignoredByScheduler`` leaves its counting to the extender."""

    name: str
    ignoredByScheduler: bool


class SchedulerOptions(TypedDict, total=False):
    """What can be set; see ``DEFAULTS`` for what holds otherwise."""

    managed_resources: Sequence[ManagedResource]  # empty: the extender is asked about every pod
    pods_without_gpus: bool  # rank nodes for them too
    claims: bool  # ask about pods with claims too
    bind: bool
    preempt: bool
    weight: int
    lease_seconds: float  # 0: no leader election
    extra: Mapping[str, Any]  # more of the whole configuration


DEFAULTS: SchedulerOptions = {
    "managed_resources": (),
    "pods_without_gpus": False,
    "claims": False,
    "bind": False,
    "preempt": False,
    "weight": 1,
    "lease_seconds": 0.0,
    "extra": {},
}


def scheduler_configuration(kubeconfig: Path, extender_url: str | None, options: SchedulerOptions) -> dict[str, Any]:
    """Return the configuration; ``extender_url`` is what the verbs are appended to, None for no extender."""
    chosen: SchedulerOptions = {**DEFAULTS, **options}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": API_QPS, "burst": API_QPS},
        "leaderElection": _leader_election(chosen["lease_seconds"]),
        "percentageOfNodesToScore": ALL_NODES,
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
    common = {"urlPrefix": url, "weight": chosen["weight"], "httpTimeout": "5s", "nodeCacheCapable": True}
    resources = [dict(resource) for resource in chosen["managed_resources"]]
    asked = {"filter": True, "prioritize": True, "bind": chosen["bind"], "preempt": chosen["preempt"]}
    verbs = {f"{verb}Verb": verb for verb, wanted in asked.items() if wanted}
    others = {**common, "prioritizeVerb": "prioritize-without-gpus"}
    extenders = [{**common, **verbs, "managedResources": resources}]
    if chosen["pods_without_gpus"]:
        extenders.append(others)
    if chosen["claims"]:
        verbs = {"prioritizeVerb": "prioritize-claims"}
        managed = [{"name": CLAIMS_RESOURCE, "ignoredByScheduler": True}]
        extenders.append({**common, **verbs, "ignorable": True, "managedResources": managed})
    return extenders
