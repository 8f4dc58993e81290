"""Holds what the command line says to an agent, as its gateway passes it on."""

from pathlib import Path

import msgspec

from gputile.api.core import Node
from gputile.node.agent.host import HostPaths
from gputile.support.logs import LogFormat

NODE = msgspec.json.Decoder(Node)


class AgentSettings(msgspec.Struct, frozen=True):
    """What the command line says. ``config`` is followed while it changes; ``health_port`` 0 is none."""

    node_name: str
    host_paths: HostPaths
    config: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    health_port: int = 0
    log_format: LogFormat = LogFormat.JSON
    verbose: bool = False


def encode_settings(settings: AgentSettings) -> str:
    """Return what ``decode_settings`` reads."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def decode_settings(text: str) -> AgentSettings:
    """Return the settings, as the process has them that starts the agent.

    Raises:
        msgspec.MsgspecError: they are not such settings.
    """
    return msgspec.json.decode(text, type=AgentSettings, dec_hook=lambda wanted, value: wanted(value))
