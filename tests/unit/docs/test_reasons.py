"""Events, conditions and exit codes, which have tables: the code names no others, and uses each."""

import ast
import re
from enum import Enum

import pytest
from docs.generator.reasons import CONDITION_REASONS, CONDITIONS, EVENTS, EXIT_CODES
from docs.generator.source import component, modules, strings

from gputile.api.well_known import ConditionReason, ConditionType, EventReason
from gputile.cli.terminal import ExitCode

_CAMEL = re.compile(r"(?:[A-Z][a-z]+){2,}|GPU[A-Z][a-z]+|NoGPUFits|InvalidGPURequest|Preempt(?:ed|ing)")
# Modules that write neither events nor conditions, and words of Kubernetes and of the kubelet's protocol elsewhere.
_NOT_OURS = ("tools", "cli", "api", "kube", "core/kube_predicates", "node/gateway/kubelet_pb2")
_WORDS = {"EventSet", "GetDevicePluginOptions", "GetPreferredAllocation", "ListAndWatch", "PreStartContainer"}
_WORDS |= {"GetInfo", "NodePrepareResources", "NodeUnprepareResources", "NodeWatchResources"}
_WORDS |= {"NotifyRegistrationStatus"}
_WORDS |= {"DoesNotExist", "NoExecute", "NoSchedule", "NotIn", "RuntimeDefault", "StartResponse"}


def users(table: type[Enum]) -> dict[str, set[str]]:
    """Return the members of a table that the code names, with the components that do."""
    found: dict[str, set[str]] = {}
    for path, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == table.__name__:
                found.setdefault(node.attr, set()).add(component(path) or path.parts[1])
    return found


def test_a_reason_is_named_by_its_table() -> None:
    """No module writes a reason as a string of its own."""
    types = {node.name for module in modules().values() for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
    strange = {
        (str(path), text)
        for path, text in strings()
        if _CAMEL.fullmatch(text) and not str(path).startswith(_NOT_OURS) and text not in types | _WORDS
    }
    assert strange == set()
    assert {str(path) for path, text in strings() if re.fullmatch(r"gputile\.io/[A-Z]\w+", text)} == {
        "api/well_known.py"
    }


@pytest.mark.parametrize("table", [EventReason, ConditionReason, ConditionType, ExitCode])
def test_each_row_is_in_use(table: type[Enum]) -> None:
    in_use = {*users(table), ExitCode.DONE.name}  # what ends well leaves with 0 by itself
    assert [each.name for each in table if each.name not in in_use] == []


def test_an_event_names_who_records_it() -> None:
    found = users(EventReason)
    told = {each: set(EVENTS[each]["components"]) for each in EventReason}
    assert told == {each: found[each.name] for each in EventReason}


def test_a_reason_belongs_to_conditions() -> None:
    of = {each: CONDITION_REASONS[each]["of"] for each in ConditionReason}
    assert [each for each, kinds in of.items() if not kinds or not {*kinds} <= {*ConditionType}] == []
    assert {kind for kinds in of.values() for kind in kinds} == {*ConditionType}


def test_the_tables_tell_of_nothing_else() -> None:
    assert [*EVENTS] == [*EventReason]
    assert [*CONDITIONS] == [*ConditionType]
    assert [*CONDITION_REASONS] == [*ConditionReason]
    assert [*EXIT_CODES] == [str(each.value) for each in ExitCode]
