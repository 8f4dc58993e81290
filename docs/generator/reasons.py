"""Writes the tables of events, conditions and exit codes, with the texts of ``reasons.toml``."""

import tomllib
from pathlib import Path

from docs.generator.tables import code, table

from gputile.api.well_known import CONDITION_PREFIX, ConditionReason, ConditionType, EventReason
from gputile.cli.terminal import ExitCode

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
EVENTS, CONDITIONS, CONDITION_REASONS, EXIT_CODES = (
    _DATA[each] for each in ("events", "conditions", "condition_reasons", "exit_codes")
)


def events() -> str:
    """Return the table of the events about pods."""
    rows = [
        (
            code(each),
            ", ".join(row["types"]),
            ", ".join(row["components"]),
            row["meaning"],
            row["remedy"],
        )
        for each in EventReason
        for row in (EVENTS[each],)
    ]
    return table(("reason", "type", "component", "it means", "what to do"), rows)


def conditions() -> str:
    """Return the table of the conditions of nodes."""
    rows = [
        (code(each), CONDITIONS[each]["component"], CONDITIONS[each]["meaning"])
        for each in ConditionType
    ]
    return table(("condition", "component", "`True` means"), rows)


def condition_reasons() -> str:
    """Return the table of the conditions' reasons."""
    rows = [
        (
            code(each),
            ", ".join(code(kind.removeprefix(CONDITION_PREFIX)) for kind in row["of"]),
            row["meaning"],
            row["remedy"],
        )
        for each in ConditionReason
        for row in (CONDITION_REASONS[each],)
    ]
    return table(("reason", "of", "it means", "what to do"), rows)


def exit_codes() -> str:
    """Return the table of the exit codes."""
    rows = [(str(each.value), EXIT_CODES[str(each.value)]) for each in ExitCode]
    return table(
        ("code", "meaning", "commands"),
        [(number, row["meaning"], row["commands"]) for number, row in rows],
    )
