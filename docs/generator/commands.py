"""Lists the commands and their options, as their parsers define them."""

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main
from docs.generator.tables import code, table

from gputile.cli.app import app

_TYPERS_OWN = ("install_completion", "show_completion")
_TYPES = {"str": "text", "int": "integer", "float": "number"}


def render() -> str:
    """Return a section for each command."""
    return "\n\n".join(_section(path, command) for path, command in _commands("gputile", _root()))


def names() -> list[str]:
    """Return the commands as users type them, in the order of the help."""
    return [path for path, _ in _commands("gputile", _root())]


def _root() -> Any:
    return typer.main.get_command(app)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(f"{path} {name}", each)


def _section(path: str, command: Any) -> str:
    parts = [
        f"## `{path}`",
        inspect.cleandoc(command.help or "").replace("\b\n", "").replace("``", "`"),
    ]
    rows = [_row(parameter) for parameter in command.params if _told(parameter)]
    if rows:
        parts.append(table(("option", "takes", "default", "meaning"), rows))
    return "\n\n".join(part for part in parts if part)


def _told(parameter: Any) -> bool:
    return parameter.name not in _TYPERS_OWN and not getattr(parameter, "hidden", False)


def _row(parameter: Any) -> tuple[str, str, str, str]:
    named = [*parameter.opts, *parameter.secondary_opts]
    name = ", ".join(named) if named[0].startswith("-") else named[0].upper()
    text = (getattr(parameter, "help", "") or "").replace("``", "`")
    if parameter.envvar:
        text += f" Environment variable: `{parameter.envvar}`."
    if parameter.multiple:
        text = text.replace("; may be given several times", "") + " May be given several times."
    return code(name), _takes(parameter), _default(parameter), text.strip()


def _takes(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return ""
    kind = parameter.type
    if choices := getattr(kind, "choices", None):
        return ", ".join(code(str(getattr(choice, "value", choice))) for choice in choices)
    word: str = _TYPES.get(kind.name.removesuffix(" range"), kind.name)
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None:
        word += f", {low} to {high}"
    elif low is not None:
        word += f", {low} or more"
    return word


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if default is None or callable(default) or default in (False, "", (), []):
        return ""
    values = default if isinstance(default, list | tuple) else [default]
    return ", ".join(code(str(getattr(value, "value", value))) for value in values)
