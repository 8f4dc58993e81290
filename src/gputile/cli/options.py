"""Turns functions that take an option dataclass into commands, and defines shared options."""

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from gputile.api.wording import broken_label_name
from gputile.cli.terminal import Output, fail, note

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Options = TypeVar("Options", bound="DataclassInstance")
FOR_EVER_S: Final = 1e6  # eleven days; poll(2) can wait for at most 24 days
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")


def duration_s(text: str, name: str, zero: str = "") -> float:
    """Parse a duration in kubectl's format (10s, 1m30s, 500ms, or plain seconds) into seconds.

    Exits if the text is not a duration. The error message begins with ``name``, the option's
    name, and ends with ``zero``, which explains the value 0.
    """
    if text.isascii() and text.isdigit():
        seconds = float(text)
    elif text and not _PART.sub("", text):
        seconds = sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(text))
    else:
        fail(f"{name} {text}: use a duration such as 10s, 1m30s or 500ms{zero}")
    return min(seconds, FOR_EVER_S)


def time_limit_s(text: str) -> float:
    return duration_s(text, "--request-timeout", "; 0 means no limit") or FOR_EVER_S


def takes(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Return a decorator that turns a function with a parameter of type ``options`` into a command.

    Each field of ``options`` becomes an option, and is annotated like a parameter of a typer
    command. A field without a default is a required option. The help lists inherited fields last.
    """
    known = {each.name: each for each in fields(options)}
    names = dict.fromkeys(
        name for kind in options.__mro__ for name in inspect.get_annotations(kind)
    )
    parameters = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=each.type,
        )
        for each in map(known.__getitem__, names)
    ]

    def decorate(function: Callable[[Options], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            function(options(**given))

        update_wrapper(
            command, function, assigned=("__module__", "__name__", "__qualname__", "__doc__")
        )
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        return command

    return decorate


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return a typer option. Without ``names``, it is named after the annotated parameter."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def namespace(option: typer.CallbackParam, name: str | None) -> str | None:
    """Exit if the name of a namespace is invalid. "" and None are valid and select no namespace."""
    if name and (why := broken_label_name(name)):
        fail(f"{option.opts[0]}: {why}")
    return name


def namespace_option(text: str) -> Any:
    return option("NAMESPACE", text, "--namespace", "-n", callback=namespace)


def _valid_time_limit(text: str) -> str:
    """Validate ``--request-timeout`` even if the command does not contact an API server."""
    if text != REQUEST_TIMEOUT:
        time_limit_s(text)
    return text


Kubeconfig = Annotated[
    Path | None, option("FILE", "The kubeconfig file. By default, the file that kubectl uses.")
]
Context = Annotated[str | None, option("NAME", "The context of the kubeconfig.")]
Config = Annotated[
    Path | None,
    option(
        "FILE", "A file with a gputile.io/v1alpha1 Configuration. By default, the cluster's own."
    ),
]
Printed = Annotated[Output, typer.Option("--output", "-o", help="The output format.")]
Plain = Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters only.")]

PodsNamespace = Annotated[
    str,
    namespace_option(
        "The namespace of the pods. Only pods of this namespace are listed, but amounts include "
        "the pods of all namespaces."
    ),
]
AllNamespaces = Annotated[
    bool,
    typer.Option(
        "--all-namespaces", "-A", help="List the pods of all namespaces. This is the default."
    ),
]

REQUEST_TIMEOUT = "10s"
RequestTimeout = Annotated[
    str,
    option(
        "TIME",
        "How long to wait for each response of the API server, such as 10s or 2m. 0 means no "
        "limit.",
        callback=_valid_time_limit,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    kubeconfig: Kubeconfig = None
    context: Context = None
    request_timeout: RequestTimeout = REQUEST_TIMEOUT

    def not_used(self) -> None:
        """Print a note for each option that is ignored because the cluster is read from files."""
        named = {"--kubeconfig": self.kubeconfig, "--context": self.context}
        for name, value in named.items():
            if value is not None:
                note(f"{name} is ignored: the cluster is read from the files of --cluster")
