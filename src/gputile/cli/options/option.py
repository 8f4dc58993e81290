"""Makes an option of a command."""

from typing import Any

import typer


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option of a command whose help is ``text``; without ``names`` it is called as its parameter is."""
    return typer.Option(*names, metavar=metavar, help=text, **more)
