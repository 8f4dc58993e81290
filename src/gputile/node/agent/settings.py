"""Defines the options of the agent, which the gateway passes to it as JSON."""

from pathlib import Path

import msgspec

from gputile.api.core import Node
from gputile.support.log_format import LogFormat

MPS_DIRECTORY = "mps"
NODE = msgspec.json.Decoder(Node)


class HostPaths(msgspec.Struct, frozen=True):
    """Paths on the node.

    ``state`` and ``usage`` must have the same paths on the host, because containers mount files in
    them. Containers write only the files in ``usage`` (``usage_files``). If ``cdi`` is set,
    containers also get their devices by CDI.
    """

    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    state: Path = Path("/var/lib/gputile")
    cdi: Path | None = None
    usage: Path = Path("/run/gputile")

    @property
    def plugin_registry(self) -> Path:
        """The directory in which the kubelet finds the sockets of DRA drivers."""
        return self.pod_resources.parent.parent / "plugins_registry"

    @property
    def claim(self) -> Path:
        return self.state / "owner"


class AgentSettings(msgspec.Struct, frozen=True):
    """The command line options of the agent.

    The file ``config`` is read again when it changes. A ``health_port`` of 0 means no port.
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

    Raises msgspec.MsgspecError if the text is invalid.
    """
    return msgspec.json.decode(
        text, type=AgentSettings, dec_hook=lambda wanted, value: wanted(value)
    )
