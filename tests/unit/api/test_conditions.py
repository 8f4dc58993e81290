"""What is written of a node's conditions: those that have changed, with the times of the change."""

from datetime import UTC, datetime

import msgspec

from gputile.api.conditions import changed_conditions
from gputile.api.core import NodeCondition

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIME = "2026-01-02T03:04:05Z"
BEFORE = NodeCondition(type="GpuHealthy", status="True", reason="AllWell", message="2 GPUs")


def test_a_condition_that_is_said_already_is_not_written() -> None:
    assert changed_conditions([BEFORE], [BEFORE], NOW) == []


def test_a_new_condition_has_had_its_transition_now() -> None:
    assert changed_conditions([], [BEFORE], NOW) == [
        {
            "type": "GpuHealthy",
            "status": "True",
            "reason": "AllWell",
            "message": "2 GPUs",
            "lastHeartbeatTime": TIME,
            "lastTransitionTime": TIME,
        }
    ]


def test_another_message_is_no_transition() -> None:
    (entry,) = changed_conditions([BEFORE], [msgspec.structs.replace(BEFORE, message="3 GPUs")], NOW)
    assert entry["message"] == "3 GPUs"
    assert "lastTransitionTime" not in entry


def test_another_status_is_a_transition() -> None:
    (entry,) = changed_conditions([BEFORE], [msgspec.structs.replace(BEFORE, status="False")], NOW)
    assert entry["lastTransitionTime"] == TIME
