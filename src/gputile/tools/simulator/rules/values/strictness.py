"""Names how strictly fields are read.

The module imports nothing else, so that a command line can list the choices fast.
"""

from enum import StrEnum


class Validation(StrEnum):
    """What becomes of fields that are not known, by the names of kubectl's --validate."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"
