"""Configures the kubelet and the containerd of one node, returns their commands, and loads images."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.localcluster import nvidiaruntime
from tests.localcluster.images import PAUSE_IMAGE
from tests.localcluster.podnetwork import PodNetwork
from tests.localcluster.processes import PATIENCE_S, ProcessFailed

SOCKET, STATE = "containerd.sock", "containerd-state"
# A network that is there and that nothing uses: such a node's pods use the machine's own.
NO_NETWORK = '{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}'
CONTAINERD_CONFIGURATION = """
version = 3
root = "{directory}/containerd"
state = "{directory}/{state}"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{directory}/{socket}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  cdi_spec_dirs = ["{directory}/cdi"]

  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{runc}"

  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{directory}/cni"
    use_internal_loopback = true
"""
MOST_PODS = 300
STATIC_PODS = "static-pods"
NEVER = {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}


def containerd_command(
    programs: Mapping[str, Path], directory: Path, network: PodNetwork | None = None, driver: Path | None = None
) -> list[str]:
    """Write the configuration into ``directory`` and return the command; shims are found beside containerd.

    ``driver`` describes the GPUs that containers may ask for, as ``write_driver`` of ``node`` writes it.
    """
    (directory / "cni").mkdir(exist_ok=True)
    (directory / "cni" / "pods.conflist").write_text(network.configuration() if network else NO_NETWORK)
    path = directory / "containerd.toml"
    runtime = programs["runc"]
    if driver is not None:
        runtime = nvidiaruntime.write_wrapper(directory / "nvidia-container-runtime", runtime, driver)
    text = CONTAINERD_CONFIGURATION.format(
        directory=directory,
        socket=SOCKET,
        state=STATE,
        pause=PAUSE_IMAGE,
        runc=runtime,
        plugins=network.plugins if network else directory / "cni",
    )
    path.write_text(text)
    return [str(programs["containerd"]), f"--config={path}", "--log-level=warn"]


def containerd_answers(programs: Mapping[str, Path], directory: Path) -> bool:
    """Return whether containerd serves."""
    try:
        return _ctr(programs, directory, "version").returncode == 0
    except subprocess.TimeoutExpired:
        return False


def import_images(programs: Mapping[str, Path], directory: Path, archive: Path) -> None:
    """Load the images of an archive, for the kubelet to find.

    Raises:
        ProcessFailed: containerd does not take them.
    """
    done = _ctr(programs, directory, "--namespace=k8s.io", "images", "import", str(archive))
    if done.returncode != 0:
        raise ProcessFailed(f"containerd does not take the images: {done.stderr}")


def tag_image(programs: Mapping[str, Path], directory: Path, reference: str, other: str) -> None:
    """Give an image another name too.

    Raises:
        ProcessFailed: containerd does not do it.
    """
    done = _ctr(programs, directory, "--namespace=k8s.io", "images", "tag", reference, other)
    if done.returncode != 0:
        raise ProcessFailed(f"containerd does not name the image {other}: {done.stderr}")


def _ctr(programs: Mapping[str, Path], directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(programs["ctr"]), f"--address={directory / SOCKET}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


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
    path.write_text(json.dumps({**_kubelet_configuration(directory, identity, authority), **more}, indent=2))
    return [
        str(program),
        f"--config={path}",
        f"--kubeconfig={identity.kubeconfig}",
        f"--hostname-override={identity.name}",
        f"--node-ip={identity.address}",
        f"--cert-dir={directory}",
    ]


def _kubelet_configuration(directory: Path, identity: KubeletIdentity, authority: Path) -> dict[str, Any]:
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
