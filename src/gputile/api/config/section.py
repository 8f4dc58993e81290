"""Defines the base class, the error and the field types of the configuration file's sections."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gputile.api.quantity import QuantityError, parse_mib
from gputile.api.wording import matching

Seconds = Annotated[int, Meta(ge=1, le=86400)]
LongSeconds = Annotated[int, Meta(ge=10, le=86400)]
Namespace = Annotated[
    str, matching("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "the name of a namespace")
]


class ConfigurationError(ValueError):
    """The configuration is not valid. The text names the field, the rule and the valid values."""


class Section(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True
):
    """A section of the file. An unknown field is an error, because it may be a typing mistake."""


def memory_mib(field: str, text: str) -> int:
    """Parse the value of ``field`` as a memory size in MiB.

    Raises ConfigurationError if ``text`` is not a memory size.
    """
    try:
        return parse_mib(text)
    except QuantityError as error:
        raise ConfigurationError(f"{field}: {error}") from error
