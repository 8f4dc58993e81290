"""Defines the stages in the life of a container's devices, and the events between them.

This is the only place that says when devices may be given to somebody else. ``DeviceTable`` keeps the stages, and
changes them by these events only. ``-`` means that nothing changes:

| stage    | answered | let start | unlisted | moved    | reassigned | pod gone | cannot run |
|----------|----------|-----------|----------|----------|------------|----------|------------|
| released | answered | orphaned  | -        | -        | -          | -        | -          |
| answered | -        | started   | released | -        | released   | released | -          |
| started  | -        | -         | -        | orphaned | orphaned   | orphaned | answered   |
| orphaned | started  | -         | -        | -        | -          | -        | released   |

The checkpoint keeps the devices, and the file ``boot`` in an allocation's directory tells that its container was let
start. Both outlive the agent, so the next agent finds each container in the stage in which the last one left it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class DeviceStage(StrEnum):
    """How far the devices of a container have come."""

    RELEASED = "released"
    """The agent keeps no devices for the container, and it does not run."""
    ANSWERED = "answered"
    """``Allocate`` was answered with them. The kubelet may not have written that down, and so may give them away."""
    STARTED = "started"
    """The container was let start with them and may run, whatever the kubelet knows of it."""
    ORPHANED = "orphaned"
    """The container was let start and may run, but its devices are not kept for it any more."""

    @property
    def has_devices(self) -> bool:
        return self in (DeviceStage.ANSWERED, DeviceStage.STARTED)

    @property
    def may_run(self) -> bool:
        """Whether the container was let start since the machine did."""
        return self in (DeviceStage.STARTED, DeviceStage.ORPHANED)


class DeviceEvent(StrEnum):
    """What happens to the devices of a container."""

    ANSWERED = "answered"
    """``Allocate`` is answered for the container."""
    LET_START = "let start"
    """``PreStartContainer`` is answered for the container, be it that its devices were released while it waited."""
    UNLISTED = "unlisted"
    """The kubelet shows that it does not count them as the container's, and the pod does not run."""
    MOVED = "moved"
    """The kubelet gives them to another container of the pod, and they are not those of an init container."""
    REASSIGNED = "reassigned"
    """They are another container's, or another answer's, by what the kubelet lists, has written down or asks for."""
    POD_GONE = "pod gone"
    """The pod has ended or is deleted, and the kubelet has let go of its devices."""
    CANNOT_RUN = "cannot run"
    """The machine has started anew, or the container's allocation directory was removed after its pod had gone."""


_RELEASED, _ANSWERED, _STARTED, _ORPHANED = DeviceStage

TRANSITIONS: Final[Mapping[DeviceStage, Mapping[DeviceEvent, DeviceStage]]] = {
    _RELEASED: {DeviceEvent.ANSWERED: _ANSWERED, DeviceEvent.LET_START: _ORPHANED},
    _ANSWERED: {
        DeviceEvent.LET_START: _STARTED,
        DeviceEvent.UNLISTED: _RELEASED,
        DeviceEvent.REASSIGNED: _RELEASED,
        DeviceEvent.POD_GONE: _RELEASED,
    },
    _STARTED: {
        DeviceEvent.MOVED: _ORPHANED,
        DeviceEvent.REASSIGNED: _ORPHANED,
        DeviceEvent.POD_GONE: _ORPHANED,
        DeviceEvent.CANNOT_RUN: _ANSWERED,
    },
    _ORPHANED: {DeviceEvent.ANSWERED: _STARTED, DeviceEvent.CANNOT_RUN: _RELEASED},
}
"""What each event makes of each stage. An event that is not there changes nothing."""


def after(stage: DeviceStage, event: DeviceEvent) -> DeviceStage:
    return TRANSITIONS[stage].get(event, stage)
