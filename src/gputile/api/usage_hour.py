"""Defines what an agent answers at ``/usage/hour``: what each pod has used over the last hour."""

from typing import Annotated, Final

import msgspec

HOUR_PATH: Final = "/usage/hour"
POD_UID: Final = "pod"  # the parameter of the query
MOST_SAMPLES: Final = 60
_MOST_LINES: Final = 4096  # containers of a pod times GPUs of a node
_Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class HourSample(msgspec.Struct, frozen=True, array_like=True):
    """Use at a time, Unix time in seconds: GPU memory in MiB, GPU time in percent of the minute before.

    What is not measured is None.
    """

    at: _Amount
    mib: _Amount | None
    percent: _Amount | None


class HourLine(msgspec.Struct, frozen=True):
    """What a container has used of one GPU, of that index on its node."""

    container: str
    gpu: int
    samples: Annotated[list[HourSample], msgspec.Meta(max_length=MOST_SAMPLES)]


class PodHour(msgspec.Struct, frozen=True):
    """What a pod has used; no lines where the agent does not know it. The samples of one moment have one time."""

    lines: Annotated[list[HourLine], msgspec.Meta(max_length=_MOST_LINES)] = []
