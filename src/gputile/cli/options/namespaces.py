"""Checks the namespaces that a command line names, which become parts of requests' paths."""

import typer

from gputile.api.names import broken_label_name
from gputile.cli.output.streams import fail


def namespace(option: typer.CallbackParam, name: str | None) -> str | None:
    """Return the name that an option gives; leave the program where no namespace can have it. "" is for none."""
    if name and (why := broken_label_name(name)):
        fail(f"{option.opts[0]}: {why}")
    return name
