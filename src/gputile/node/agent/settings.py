"""Holds the agent's command line, as its gateway passes it on."""

from pathlib import Path

import msgspec

from gputile.api.core import Node
from gputile.support.telemetry import LogFormat

MPS_DIRECTORY = "mps"
NODE = msgspec.json.Decoder(Node)


class HostPaths(msgspec.Struct, frozen=True):
    """Where things are.

    ``host_state`` is the state directory as the host sees it, for mounts into containers. ``usage`` is for what
    containers write, at the same path on the host: see ``usage_files``. With a ``cdi`` directory containers get their
    devices by CDI too. ``root`` is where the agent sees the host's /usr and /proc/driver.
    """

    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    state: Path = Path("/var/lib/gputile")
    host_state: Path | None = None
    cdi: Path | None = None
    root: Path = Path("/")
    usage: Path = Path("/run/gputile")

    @property
    def kubelet(self) -> Path:
        """The kubelet's own directory; that of the device plugins need not be below it."""
        return self.pod_resources.parent.parent

    @property
    def plugin_registry(self) -> Path:
        """Where the kubelet looks for the sockets of DRA drivers."""
        return self.kubelet / "plugins_registry"

    @property
    def claim(self) -> Path:
        return self.state / "owner"


class AgentSettings(msgspec.Struct, frozen=True):
    """The options of the command line. ``config`` is read again when it changes; ``health_port`` 0 is none."""

    node_name: str
    host_paths: HostPaths
    config: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    health_port: int = 0
    log_format: LogFormat = LogFormat.JSON
    verbose: bool = False


def encode_settings(settings: AgentSettings) -> str:
    return msgspec.json.encode(settings, enc_hook=str).decode()


def decode_settings(text: str) -> AgentSettings:
    """Return the settings, as the process has them that starts the agent.

    Raises:
        msgspec.MsgspecError: they are not such settings.
    """
    return msgspec.json.decode(text, type=AgentSettings, dec_hook=lambda wanted, value: wanted(value))
