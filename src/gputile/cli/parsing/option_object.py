"""Gives commands their options as one object."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")


def takes(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Return a decorator that makes a command of a function of ``options``, a dataclass.

    Each field becomes an option: its annotation is what a parameter of a command would have, its default the option's.
    A field without a default is an option that has to be given.
    """
    parameters = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=each.type,
        )
        for each in fields(options)
    ]

    def decorate(function: Callable[[Options], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            function(options(**given))

        update_wrapper(command, function, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        return command

    return decorate
