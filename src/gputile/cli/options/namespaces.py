"""Defines the option that names a namespace, and checks it: it becomes a part of requests' paths."""

from typing import Any

import typer

from gputile.api.wording import broken_label_name
from gputile.cli.options import candidates
from gputile.cli.output.streams import fail


def namespace(option: typer.CallbackParam, name: str | None) -> str | None:
    """Return the name that an option gives; leave the program where no namespace can have it. "" is for none."""
    if name and (why := broken_label_name(name)):
        fail(f"{option.opts[0]}: {why}")
    return name


def option(text: str) -> Any:
    """Return the option ``--namespace`` of a command, with ``text`` as its help."""
    return typer.Option(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        autocompletion=candidates.namespaces,
        callback=namespace,
        help=text,
    )
