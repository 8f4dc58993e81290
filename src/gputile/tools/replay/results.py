"""What a replay measured."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gputile.api.old_keys import OldKeys
from gputile.tools.replay.engine import Curve

POINTS = (95, 100, 130)
"""Arrived demand, per cent of the cluster's GPUs, at which policies are compared."""


class Result(OldKeys, frozen=True, rename="camel"):
    """One replay. ``allocated`` is in per cent of the cluster's GPUs, by the per cent that had arrived."""

    old_keys: ClassVar[Mapping[str, str]] = {"failedPods": "failed_pods"}
    workload: str
    policy: str
    seed: int
    allocated: dict[str, float]
    failed_pods: int
    seconds: float


def allocated(curve: Curve, point: int) -> float:
    """Return the mean of allocated % over the arrivals at which the demand rounds to ``point`` %; NaN for none."""
    at = np.rint(100 * curve.arrived / curve.total) == point
    return float(100 * curve.used[at].mean() / curve.total) if at.any() else float("nan")


def result(workload: str, policy: str, seed: int, curve: Curve, seconds: float) -> Result:
    """Summarise a replay."""
    points = {str(point): round(allocated(curve, point), 3) for point in POINTS}
    return Result(workload, policy, seed, points, curve.failed, round(seconds, 3))
