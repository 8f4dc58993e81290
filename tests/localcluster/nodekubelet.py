"""The kubelet of one node: its configuration and its command."""

import json
from pathlib import Path
from typing import Any

from tests.localcluster.containerd import SOCKET

MOST_PODS = 300
STATIC_PODS = "static-pods"
NEVER = {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}


def kubelet_command(
    program: Path, directory: Path, *, name: str, address: str, port: int, authority: Path, kubeconfig: Path
) -> list[str]:
    """Write the configuration into ``directory`` and return the command of a kubelet of the cluster."""
    (directory / STATIC_PODS).mkdir()
    path = directory / "kubelet.json"
    path.write_text(json.dumps(_configuration(directory, address, port, authority), indent=2))
    return [
        str(program),
        f"--config={path}",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={name}",
        f"--node-ip={address}",
        f"--cert-dir={directory}",
    ]


def _configuration(directory: Path, address: str, port: int, authority: Path) -> dict[str, Any]:
    """Return the configuration: that of an ordinary node but for what makes many small pods quick and stay."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": port,
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
