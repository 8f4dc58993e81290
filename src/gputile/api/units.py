"""Defines the units in which memory is counted."""

from typing import Final

MIB: Final = 1 << 20
"""Bytes of a mebibyte."""
