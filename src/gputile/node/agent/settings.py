"""Defines the options of the agent, which the gateway passes to it as JSON."""

from pathlib import Path

import msgspec

from gputile.api.core import Node
from gputile.support.telemetry import LogFormat

MPS_DIRECTORY = "mps"
NODE = msgspec.json.Decoder(Node)


class HostPaths(msgspec.Struct, frozen=True):
    """Paths on the node.

    Containers mount what is in ``state``, so it has the same path on the host, and so does
    ``usage``, the directory for files that containers write: see ``usage_files``. If a ``cdi``
    directory is set, containers get their devices by CDI too. ``root`` is where the agent sees the
    host's /usr and /proc/driver.
    """

    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    state: Path = Path("/var/lib/gputile")
    cdi: Path | None = None
    root: Path = Path("/")
    usage: Path = Path("/run/gputile")

    @property
    def plugin_registry(self) -> Path:
        """The directory in which the kubelet finds the sockets of DRA drivers."""
        return self.pod_resources.parent.parent / "plugins_registry"

    @property
    def claim(self) -> Path:
        return self.state / "owner"


class AgentSettings(msgspec.Struct, frozen=True):
    """The command line options.

    ``config`` is reloaded when it changes. 0 as ``health_port`` means no port.
    """

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
    """Decode the settings that the gateway passes to the agent.

    Raises:
        msgspec.MsgspecError: the text is invalid.
    """
    return msgspec.json.decode(
        text, type=AgentSettings, dec_hook=lambda wanted, value: wanted(value)
    )
