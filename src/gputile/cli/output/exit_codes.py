"""Names the exit codes of commands; ``docs/generator/reasons.toml`` says what each means."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command leaves with."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2  # also the code of typer's own usage errors
    NOT_AS_ASKED = 3
