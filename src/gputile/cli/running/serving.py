"""Runs a service from the command line."""

from collections.abc import Coroutine
from typing import Any

from gputile.cli.output.streams import fail
from gputile.support.listening import PortError


def run_service(service: Coroutine[Any, Any, None]) -> None:
    """Run a service until it ends; leave with an error where it cannot have its ports."""
    import uvloop

    try:
        uvloop.run(service)
    except PortError as error:
        fail(str(error))
