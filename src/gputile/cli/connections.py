"""Opens the connection to an API server that costs a command least."""

import math
from typing import TYPE_CHECKING

from gputile.kube.access.kubeconfig import Access
from gputile.kube.transport.answer_bounds import MOST_ANSWER_BYTES
from gputile.kube.transport.attempts import Attempts
from gputile.kube.transport.light_connection import LightConnection

if TYPE_CHECKING:
    from gputile.kube.transport.connection import Connection


def connection_to(access: Access, longest_wait_s: float = math.inf) -> "LightConnection | Connection":
    """Return the connection that costs least: what speaks with proxies takes long to load.

    A server that asks for a pause of ``longest_wait_s`` seconds or more before the next attempt is asked no more.
    """
    attempts = Attempts(longest_wait_s=longest_wait_s)
    if access.proxy is None:
        return LightConnection(access, attempts=attempts)
    from gputile.kube.transport.connection import Connection

    return Connection(access, attempts=attempts, most_bytes=MOST_ANSWER_BYTES)
