"""Writes what changes of a node's conditions, as entries of a strategic merge patch."""

from collections.abc import Iterable
from datetime import datetime

from gputile.api.core import NodeCondition
from gputile.api.timestamps import timestamp_of


def changed_conditions(
    current: Iterable[NodeCondition], wanted: Iterable[NodeCondition], now: datetime
) -> list[dict[str, str]]:
    """Return the ``wanted`` conditions that differ from the ``current`` ones, seen at ``now``.

    A condition whose status is the same keeps the time of its last transition.
    """
    have = {condition.type: condition for condition in current}
    time = timestamp_of(now)
    changed = []
    for condition in wanted:
        before = have.get(condition.type)
        if condition == before:
            continue
        entry = {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": time,
        }
        if before is None or before.status != condition.status:
            entry["lastTransitionTime"] = time
        changed.append(entry)
    return changed
