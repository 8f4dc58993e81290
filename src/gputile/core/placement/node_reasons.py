"""Words the reasons of nodes, and names nodes with the same reason together."""

import heapq
from collections.abc import Collection, Iterable

NAMES_SHOWN = 3


def grouped(said: Iterable[tuple[str, str]], asked: int, most: int) -> list[str]:
    """Return a text for each of the first ``most`` reasons of (node, reason), and how many of ``asked`` nodes are left.

    Reasons are in the order of their first nodes.
    """
    names: dict[str, list[str]] = {}
    for name, why in said:
        names.setdefault(why, []).append(name)
    shown = list(names.items())[:most]
    left = asked - sum(len(alike) for _, alike in shown)
    return [told_of(alike, why) for why, alike in shown] + ([f"and {left} more"] if left > 0 else [])


def told_of(names: Collection[str], why: str) -> str:
    """Return "NODE: why", or "4 nodes (NODE, ...): why"."""
    return f"{some(names)}: {why}" if len(names) == 1 else f"{len(names)} nodes ({some(names)}): {why}"


def some(names: Collection[str]) -> str:
    """Return the first few of ``names`` by the alphabet.

    kube-scheduler names nodes in another order each time; what is said of the same nodes stays the same text.
    """
    return ", ".join(heapq.nsmallest(NAMES_SHOWN, names)) + (", ..." if len(names) > NAMES_SHOWN else "")
