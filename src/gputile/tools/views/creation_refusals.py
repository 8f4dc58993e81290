"""Finds why a pod does not exist: what its controller said when the API server refused to create it."""

import re
from collections.abc import Iterable
from typing import Final

from gputile.api.workloads import Event

_REASON: Final = "FailedCreate"
_BY_LIMIT_RANGE: Final = r"(?:minimum|maximum) \S{1,253} usage per [A-Z]|max limit to request ratio per [A-Z]"
_REMEDIES: Final = (
    (
        r"exceeded quota: ([a-z0-9.-]{1,253}),",
        "ResourceQuota {} holds it: delete pods of the namespace, or raise the quota",
    ),
    (
        r"failed quota: ([a-z0-9.-]{1,253}): must specify ",
        "ResourceQuota {} counts what the pod does not name: name it, or have a LimitRange give a default",
    ),
    (_BY_LIMIT_RANGE, "a LimitRange of the namespace holds it: change what the pod asks for, or the LimitRange"),
)


def creation_refusal(name: str, events: Iterable[Event]) -> str | None:
    """Return why a pod could not be created, or the pods of the controller ``name``; None where nobody says so.

    ``events`` are those of the namespace. Of several the latest counts.
    """
    found = [
        event
        for event in events
        if event.reason == _REASON and _is_of(name, event.involved_object.name) and event.message
    ]
    if not found:
        return None
    latest = max(found, key=lambda event: event.when)
    about = latest.involved_object
    return f"{about.kind} {about.name} could not create it: {latest.message}{_remedy(latest.message)}"


def _remedy(message: str) -> str:
    """Return what helps against the rule of the namespace that an API server names, after a semicolon."""
    found = ((re.search(pattern, message), text) for pattern, text in _REMEDIES)
    return next((f"; {text.format(*match.groups())}" for match, text in found if match), "")


def _is_of(pod: str, controller: str) -> bool:
    return bool(controller) and (pod == controller or pod.startswith(f"{controller}-"))
