"""Computes what a container is to get of a GPU's time, by the policy in force."""

from dataclasses import dataclass
from typing import Final

from gputile.api.gpu_time import GpuTimePolicy
from gputile.node.native_layouts import SHARE_WHOLE

WHOLE: Final = SHARE_WHOLE


@dataclass(frozen=True, slots=True)
class Share:
    """What one container is to get of one GPU's time.

    ``guarantee`` and ``ceiling`` are millionths of the time that goes by. Higher ``priority`` goes first.
    """

    weight: int = 1
    guarantee: int = 0
    ceiling: int = WHOLE
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ShareClaim:
    """What a container brings along: ``percent`` of the GPU's compute, 0 if it asks for none, and its memory's."""

    percent: int = 0
    memory_percent: int = 0
    weight: int = 1
    priority: int = 0


def share_of(policy: GpuTimePolicy, claim: ShareClaim, most_containers: int) -> Share:
    """Return what a container gets under ``policy``; ``most_containers`` is how many a GPU may have."""
    percent = claim.percent or claim.memory_percent or 1
    part = WHOLE // 100 * min(100, percent)
    match policy:
        case GpuTimePolicy.AVERAGE:
            return Share(1, WHOLE // most_containers, WHOLE // most_containers)
        case GpuTimePolicy.WEIGHTED:
            return Share(claim.weight, priority=claim.priority)
        case GpuTimePolicy.FIXED:
            return Share(percent, part, part)
        case GpuTimePolicy.WEAK:
            return Share(claim.weight, part, WHOLE, claim.priority)
        case GpuTimePolicy.PREEMPTIVE | GpuTimePolicy.NATIVE:
            return Share()


def fallback(policy: GpuTimePolicy, share: Share, weights: int) -> int:
    """Return the millionths of the GPU that a container keeps to while no arbiter runs.

    ``weights`` is the most that the weights of the containers on the GPU that run at one time add up to, its own too.
    """
    if policy is GpuTimePolicy.NATIVE:
        return WHOLE
    if share.guarantee:
        return share.guarantee
    return max(1, min(share.ceiling, WHOLE * share.weight // max(1, weights)))
