"""Defines what all parts of the configuration have in common, and the error of one that is not valid."""

from typing import Annotated

import msgspec

from gputile.api.field_mistake import matching

Namespace = Annotated[str, matching("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "the name of a namespace")]


class ConfigurationError(ValueError):
    """The configuration is not valid; the text names the field, the rule and the valid values."""


class Section(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a file that people write: an unknown field is an error, since it may be a typing mistake."""
