"""What the extender tells the people who look at a pod."""

from dataclasses import dataclass

from gputile.api.core import Pod


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Something to tell the people who look at a pod: an Event's type, reason and message.

    With ``latest`` an Event of the same reason gets this message, whatever amounts its own had.
    """

    pod: Pod
    warning: bool
    reason: str
    message: str
    latest: bool = False
