"""Finds which objects name something that a cluster may have, so that it has to be read there."""

from collections.abc import Set
from typing import Any


def names_field(value: Any, fields: Set[str]) -> bool:
    """Return whether something in an object has one of the ``fields``, however deep its templates stand."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            if not fields.isdisjoint(each):
                return True
            left += each.values()
        elif isinstance(each, list):
            left += each
    return False
