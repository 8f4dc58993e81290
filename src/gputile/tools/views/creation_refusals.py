"""Why a pod does not exist: what its controller said when the API server refused to create it."""

import re
from collections.abc import Iterable
from typing import Final

from gputile.api.workloads import Event

_REASON: Final = "FailedCreate"
_QUOTA: Final = re.compile(r"exceeded quota: ([a-z0-9.-]{1,253}),")


def creation_refusal(name: str, events: Iterable[Event]) -> str:
    """Return why a pod could not be created, or the pods of the controller ``name``; "" where nobody says so.

    ``events`` are those of the namespace. Of several the latest counts.
    """
    found = [
        event
        for event in events
        if event.reason == _REASON and _is_of(name, event.involved_object.name) and event.message
    ]
    if not found:
        return ""
    latest = max(found, key=lambda event: event.when)
    about = latest.involved_object
    quota = _QUOTA.search(latest.message)
    remedy = f"; ResourceQuota {quota[1]} holds it: delete pods of the namespace, or raise the quota" if quota else ""
    return f"{about.kind} {about.name} could not create it: {latest.message}{remedy}"


def _is_of(pod: str, controller: str) -> bool:
    return bool(controller) and (pod == controller or pod.startswith(f"{controller}-"))
