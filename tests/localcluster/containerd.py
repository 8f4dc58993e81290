"""containerd for one node: its configuration, its command, and the images that it starts with."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.localcluster import nvidiaruntime
from tests.localcluster.images import PAUSE_IMAGE
from tests.localcluster.podnetwork import PodNetwork
from tests.localcluster.processes import PATIENCE_S, ProcessFailed

SOCKET, STATE = "containerd.sock", "containerd-state"
# A network that is there and that nothing uses: such a node's pods use the machine's own.
NETWORK = '{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}'
CONFIGURATION = """
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


def containerd_command(
    programs: Mapping[str, Path], directory: Path, network: PodNetwork | None = None, driver: Path | None = None
) -> list[str]:
    """Write the configuration into ``directory`` and return the command; shims are found beside containerd.

    ``driver`` describes the GPUs that containers may ask for, as ``nodedriver`` writes it.
    """
    (directory / "cni").mkdir(exist_ok=True)
    (directory / "cni" / "pods.conflist").write_text(network.configuration() if network else NETWORK)
    path = directory / "containerd.toml"
    runtime = programs["runc"]
    if driver is not None:
        runtime = nvidiaruntime.write_wrapper(directory / "nvidia-container-runtime", runtime, driver)
    text = CONFIGURATION.format(
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
