"""How strictly fields are read. Apart from what reads them, so that a command line can name the choices at once."""

from enum import StrEnum


class Validation(StrEnum):
    """What becomes of fields that are not known, by the names of kubectl's --validate."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"
