"""Describes how a Deployment replaces its pods, where old and new ones need room at once.

The rule is that of Kubernetes (k8s.io/kubernetes, pkg/controller/deployment/util, ``ResolveFenceposts``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gputile.api.core import Pod
from gputile.tools.simulator.cluster.owners import Owner
from gputile.tools.simulator.rules.values.numbers import percentage

Json = Mapping[str, Any]
_BY_DEFAULT: Final = "25%"


@dataclass(frozen=True, slots=True)
class RollingUpdate:
    """How many pods a Deployment wants, how many more it may have, and how many of them may be unavailable."""

    replicas: int
    surge: int
    unavailable: int


@dataclass(frozen=True, slots=True)
class Replacement:
    """The running pods of the Deployment ``owner`` that others of a new template replace."""

    owner: Owner
    update: RollingUpdate
    old: tuple[Pod, ...]

    @property
    def leaving_first(self) -> int:
        """Return how many of the old pods leave before a new one is ready."""
        return max(0, len(self.old) - (self.update.replicas - self.update.unavailable))

    @property
    def coming_first(self) -> int:
        """Return how many new pods are made before one of them is ready."""
        staying = len(self.old) - self.leaving_first
        return min(self.update.replicas, max(0, self.update.replicas + self.update.surge - staying))


def rolling_update(kind: str, spec: Json) -> RollingUpdate | None:
    """Return how a valid object replaces its pods, None if all of them may leave before new ones come.

    A StatefulSet and a DaemonSet take one pod away after the other, before its successor.
    """
    strategy = spec.get("strategy") or {}
    if kind != "Deployment" or strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return None
    rolling, replicas = strategy.get("rollingUpdate") or {}, spec.get("replicas", 1)
    surge = _share(rolling.get("maxSurge", _BY_DEFAULT), replicas, math.ceil)
    unavailable = _share(rolling.get("maxUnavailable", _BY_DEFAULT), replicas, math.floor)
    return RollingUpdate(replicas, surge, unavailable if surge or unavailable else 1)


def _share(value: int | str, replicas: int, rounded: Any) -> int:
    """Return a number of pods; percentages are of ``replicas``."""
    return int(rounded((percentage(value) or 0) * replicas / 100)) if isinstance(value, str) else value
