"""Runs the agent as the gateway starts it behind itself.

``python -m gputile.node.agent SETTINGS TOKEN``
"""

import os
import socket
import sys

import uvloop

from gputile.api.config.v1alpha1 import Configuration, ConfigurationError
from gputile.kube.config import load_access
from gputile.kube.errors import ConfigError
from gputile.node.agent.files.allocation_files import StateError
from gputile.node.agent.serve import serve
from gputile.node.agent.settings import decode_settings
from gputile.node.gateway.link import LINK
from gputile.node.nvml.nvml_probe import open_real
from gputile.support.config_file import read
from gputile.support.listening import PortError
from gputile.support.logs import set_up_logging


def main() -> None:
    settings, token = decode_settings(sys.argv[1]), sys.argv[2]
    link = socket.socket(fileno=int(os.environ.pop(LINK)))
    link.set_inheritable(False)
    set_up_logging(settings.log_format, settings.verbose)
    try:
        configuration = read(settings.config) if settings.config else Configuration()
        access = load_access(settings.kubeconfig, settings.context)
    except (ConfigurationError, ConfigError) as error:
        sys.exit(f"error: {error}")
    try:
        status = uvloop.run(serve(access, settings, configuration, open_real, link, token))
    except (PortError, StateError) as error:
        sys.exit(f"error: {error}")
    sys.exit(status)


if __name__ == "__main__":
    main()
