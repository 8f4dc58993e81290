"""Writes the tables of events, conditions and exit codes, as the enumerations of the code have them."""

from docs.generator.tables import code, table

from gputile.api.reasons import ConditionReason, ConditionType, EventReason
from gputile.api.well_known import CONDITION_PREFIX
from gputile.cli.output.exit_codes import ExitCode


def events() -> str:
    """Return the table of the events about pods."""
    rows = [(code(each), ", ".join(each.kinds), each.components, each.meaning, each.remedy) for each in EventReason]
    return table(("reason", "type", "component", "it means", "what to do"), rows)


def conditions() -> str:
    """Return the table of the conditions of nodes."""
    rows = [(code(each), each.component, each.meaning) for each in ConditionType]
    return table(("condition", "component", "`True` means"), rows)


def condition_reasons() -> str:
    """Return the table of the conditions' reasons."""
    rows = [
        (
            code(each),
            ", ".join(code(kind.removeprefix(CONDITION_PREFIX)) for kind in each.of),
            each.meaning,
            each.remedy,
        )
        for each in ConditionReason
    ]
    return table(("reason", "of", "it means", "what to do"), rows)


def exit_codes() -> str:
    """Return the table of the exit codes."""
    return table(("code", "meaning", "commands"), [(str(each.value), each.meaning, each.commands) for each in ExitCode])
