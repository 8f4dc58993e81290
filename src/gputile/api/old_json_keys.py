"""Writes the former keys of a record in JSON beside those of today, for one minor version."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec


class OldKeys(msgspec.Struct, frozen=True, rename="camel"):
    """A record whose fields, or whose parts' fields, had other keys: ``old_keys`` has them by the key of today."""

    old_keys: ClassVar[Mapping[str, str]] = {}


def with_old_keys(value: Any) -> Any:
    """Return an answer for an encoder of JSON: each value that had another key is there under that key, too."""
    if isinstance(value, OldKeys):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        found = {key: with_old_keys(getattr(value, name)) for key, name in names}
        written = {key: each for key, each in found.items() if each is not msgspec.UNSET}
        return written | {old: written[key] for key, old in value.old_keys.items() if key in written}
    if isinstance(value, list | tuple):
        return [with_old_keys(each) for each in value]
    return value
