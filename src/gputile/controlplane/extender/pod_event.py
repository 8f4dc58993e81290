"""Builds the events by which the extender informs the people who look at a pod."""

from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.api.reasons import EventReason


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Something to tell the people who look at a pod: an Event's type, reason and message.

    With ``latest`` an Event of the same reason gets this message, whatever amounts its own had.
    """

    pod: Pod
    warning: bool
    reason: EventReason
    message: str
    latest: bool = False
