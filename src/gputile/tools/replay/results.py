"""Defines what a replay measures."""

from typing import Annotated

import msgspec
import numpy as np

from gputile.api.wording import described
from gputile.tools.replay.engine import Curve

POINTS = (95, 100, 130)
"""Arrived demand, per cent of the cluster's GPUs, at which policies are compared."""


class ReplayResult(msgspec.Struct, frozen=True, rename="camel"):
    """One replay. ``allocated`` is in per cent of the cluster's GPUs, by the per cent that had arrived."""

    workload: Annotated[str, described("Which workload of the trace.")]
    policy: Annotated[str, described("Which placement policy.")]
    seed: Annotated[int, described("The seed of the order of the pods.")]
    allocated: Annotated[
        dict[str, float | None],
        described("Allocated GPUs, per cent, by the per cent asked for; null where it was never just that."),
    ]
    failed_pods: Annotated[int, described("Pods that fitted nowhere when they came.")]
    seconds: Annotated[float, described("CPU time of the replay.")]


def allocated(curve: Curve, point: int) -> float | None:
    """Return the mean of allocated % over the arrivals at which the demand rounds to ``point`` %; None for none."""
    at = np.rint(100 * curve.arrived / curve.total) == point
    return round(float(100 * curve.used[at].mean() / curve.total), 3) if at.any() else None


def result(workload: str, policy: str, seed: int, curve: Curve, seconds: float) -> ReplayResult:
    """Summarise a replay."""
    points = {str(point): allocated(curve, point) for point in POINTS}
    return ReplayResult(workload, policy, seed, points, curve.failed, round(seconds, 3))
