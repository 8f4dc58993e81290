"""Names the exit codes of commands; ``docs/reference/exit-codes.md`` is generated from this table."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command leaves with: what the code means, and which commands leave with it."""

    meaning: str
    commands: str

    def __new__(cls, code: int, meaning: str, commands: str) -> "ExitCode":
        """Make a code that is its number."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning, made.commands = meaning, commands
        return made

    DONE = (
        0,
        "done, and everything is as it was asked for: every pod placed, everything deployed, every bound held",
        "all",
    )
    FAILED = (
        1,
        "the cluster does not answer, standard output cannot be written, a service cannot have its port or ended "
        "because of an error, or a bound was missed (`selftest`)",
        "all",
    )
    BAD_INPUT = (  # also the code of typer's own usage errors
        2,
        "input that cannot be used: an option, a file, a kubeconfig (also one whose server is no API server), a "
        "configuration; manifests that a cluster refuses (`simulate`, `nodepool`)",
        "all",
    )
    NOT_AS_ASKED = (
        3,
        "a pod was not placed, or is pending (`simulate`, `explain`), a workload can never run on the pool "
        "(`nodepool`), a component is not ready (`status`)",
        "`simulate`, `explain`, `nodepool`, `status`",
    )
