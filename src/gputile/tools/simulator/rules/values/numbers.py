"""Checks bounds of numbers, amounts as numbers or percentages, and values that are one of a few."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken

Json = Mapping[str, Any]
_PERCENT: Final = re.compile(r"[0-9]+%", re.ASCII)
_MOST_DIGITS: Final = 19  # of what counts in 64 bits
_NOT_COUNTED: Final = 2**63
_LARGEST: Final = 2**31 - 1
_LARGEST_PORT: Final = 65535
_MOST_FILE_MODE: Final = 0o777


def broken_within(path: str, owner: Json, field: str, least: int) -> Iterator[Broken]:
    """Yield what is wrong with a number from ``least`` to the largest of 32 bits."""
    value = owner.get(field)
    if value is not None and not least <= value <= _LARGEST:
        yield f"{path}.{field}", f"Invalid value: {value}: must be between {least} and {_LARGEST}, inclusive"


def broken_least(path: str, owner: Json, least: int, *fields: str) -> Iterator[Broken]:
    """Yield what is wrong with numbers of ``least`` or more."""
    for field in fields:
        value = owner.get(field)
        if value is not None and value < least:
            yield f"{path}.{field}", f"Invalid value: {value}: must be greater than or equal to {least}"


def broken_port(path: str, number: int) -> Iterator[Broken]:
    """Yield what is wrong with the number of a port."""
    if not 1 <= number <= _LARGEST_PORT:
        yield path, f"Invalid value: {number}: must be between 1 and {_LARGEST_PORT}, inclusive"


def one_of(path: str, value: str, valid: Iterable[str]) -> Iterator[Broken]:
    """Yield what is wrong with a value that must be one of a few."""
    choices = tuple(valid)
    if value not in choices:
        yield path, f"Unsupported value: {shown(value)}: supported values: {', '.join(map(shown, choices))}"


def broken_file_mode(path: str, owner: Json, field: str) -> Iterator[Broken]:
    """Yield what is wrong with the permissions of a file."""
    value = owner.get(field)
    if value is not None and not 0 <= value <= _MOST_FILE_MODE:
        rule = f"must be between 0 and {_MOST_FILE_MODE}, which is 0777 in octal"
        yield f"{path}.{field}", f"Invalid value: {value}: {rule}"


def broken_share(path: str, value: Any, *, at_most_all: bool) -> Iterator[Broken]:
    """Yield what is wrong with a number or percentage of pods; ``at_most_all`` says that 100 % is the most."""
    if isinstance(value, str):
        percent = percentage(value)
        if percent is None:
            yield path, f'Invalid value: {shown(value)}: must be a whole number, or a percentage as "25%"'
        elif at_most_all and percent > 100:
            yield path, f"Invalid value: {shown(value)}: must not be greater than 100%"
    elif value < 0:
        yield path, f"Invalid value: {value}: must be greater than or equal to 0"


def is_no_share(value: Any) -> bool:
    """Return whether a number or percentage is zero."""
    return (percentage(value) if isinstance(value, str) else value) == 0


def percentage(text: str) -> int | None:
    """Return the number of a percentage, None for any other text; 2**63 stands for all that 64 bits do not hold."""
    if not _PERCENT.fullmatch(text):
        return None
    digits = text[:-1].lstrip("0") or "0"
    return min(int(digits), _NOT_COUNTED) if len(digits) <= _MOST_DIGITS else _NOT_COUNTED
