"""The kubelet of one node: its configuration and its command."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.localcluster.containerd import SOCKET

MOST_PODS = 300
STATIC_PODS = "static-pods"
NEVER = {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}


@dataclass(frozen=True)
class KubeletIdentity:
    """Who a kubelet is: the node's ``name``, where it listens, and the ``kubeconfig`` that it speaks with."""

    name: str
    address: str
    port: int
    kubeconfig: Path


def kubelet_command(
    program: Path, directory: Path, identity: KubeletIdentity, authority: Path, more: Mapping[str, Any]
) -> list[str]:
    """Write the configuration into ``directory`` and return the command of a kubelet of the cluster.

    ``authority`` is whose clients it lets in, ``more`` is more of its configuration.
    """
    (directory / STATIC_PODS).mkdir(exist_ok=True)
    path = directory / "kubelet.json"
    path.write_text(json.dumps({**_configuration(directory, identity, authority), **more}, indent=2))
    return [
        str(program),
        f"--config={path}",
        f"--kubeconfig={identity.kubeconfig}",
        f"--hostname-override={identity.name}",
        f"--node-ip={identity.address}",
        f"--cert-dir={directory}",
    ]


def _configuration(directory: Path, identity: KubeletIdentity, authority: Path) -> dict[str, Any]:
    """Return the configuration: that of an ordinary node but for what makes many small pods quick and stay."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": identity.address,
        "port": identity.port,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{directory.name}",
        "containerRuntimeEndpoint": f"unix://{directory / SOCKET}",
        "eventRecordQPS": 0,
        "evictionHard": NEVER,
        "failCgroupV1": False,
        "failSwapOn": False,
        "fileCheckFrequency": "1s",
        "imageGCHighThresholdPercent": 100,
        "kubeAPIQPS": 500,
        "kubeAPIBurst": 1000,
        "makeIPTablesUtilChains": False,
        "maxPods": MOST_PODS,
        "nodeStatusReportFrequency": "10s",
        "nodeStatusUpdateFrequency": "1s",
        "resolvConf": "",
        "staticPodPath": str(directory / STATIC_PODS),
    }
