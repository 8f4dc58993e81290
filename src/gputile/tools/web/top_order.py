"""Names what ``gputile top`` sorts by.

It is apart from the rows, since its help loads nothing that they are made of.
"""

from enum import StrEnum


class TopOrder(StrEnum):
    """What rows are sorted by; names ascend, all else descends."""

    BOOKED = "booked"
    USED = "used"
    COMPUTE = "compute"
    PODS = "pods"
    NAME = "name"
