"""Defines the policies of GPU time, and parses the weights and percentages of pods.

The policies are those of ACK's cGPU (parameter ``POLICY``, 0 to 5), with names of gputile and with ACK's numbers.
Source: Alibaba Cloud, "Configure the computing power scheduling policy of cGPU".
"""

from enum import StrEnum
from typing import Final

from gputile.api.quantity import decimal
from gputile.api.wording import nearest

MOST_WEIGHT: Final = 1000


class GpuTimePolicy(StrEnum):
    """How time on a GPU is shared.

    ``average``: each container gets 1/maxPodsPerGpu, even if it is alone. ``preemptive``: containers with work get
    equal shares. ``weighted``: as ``preemptive``, by weights and priorities. ``fixed``: each gets its percentage, never
    more. ``weak``: each is guaranteed its percentage, and the rest is shared by weights and priorities. ``native``: the
    driver decides.
    """

    AVERAGE = "average"
    PREEMPTIVE = "preemptive"
    WEIGHTED = "weighted"
    FIXED = "fixed"
    WEAK = "weak"
    NATIVE = "native"


POLICIES: Final = tuple(GpuTimePolicy)
"""All policies; the index of each is its number in ACK."""


class GpuTimePolicyError(ValueError):
    """There is no such policy; the text names the valid ones."""


def parse_policy(named: str | int) -> GpuTimePolicy:
    """Return the policy by its name or ACK's number; the number may be text.

    Raises:
        GpuTimePolicyError: there is no such policy.
    """
    text = str(named)
    if text in POLICIES:
        return GpuTimePolicy(text)
    if len(text) == 1 and text in "012345":
        return POLICIES[int(text)]
    valid = ", ".join(f"{policy} ({number})" for number, policy in enumerate(POLICIES))
    raise GpuTimePolicyError(f"{text!r} is not a policy of GPU time; valid are {valid}{nearest(text, POLICIES)}")


def parse_weight(text: str, most: int = MOST_WEIGHT) -> int:
    """Return the weight in a pod's annotation; ``most`` is the limit of the pod's namespace.

    Raises:
        ValueError: it is not valid; the text names the valid range.
    """
    weight = decimal(text, 4)
    if 1 <= weight <= most:
        return weight
    whose = "" if most == MOST_WEIGHT else " in this namespace"
    raise ValueError(f"{text!r} is no weight of GPU time; valid{whose} are 1 to {most}")


def parse_active_threads(text: str) -> int:
    """Return the percentage of a GPU's threads in a pod's annotation (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE).

    Raises:
        ValueError: it is not valid; the text names the valid range.
    """
    percentage = decimal(text, 3)
    if 1 <= percentage <= 100:
        return percentage
    raise ValueError(f"{text!r} is not a percentage of a GPU's threads; valid are 1 to 100")
