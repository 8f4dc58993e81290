"""Words the reasons of nodes, and names nodes with the same reason together."""

import heapq
from collections.abc import Collection, Iterable, Sequence

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
    return told_of_first(first_few(names), len(names), why)


def told_of_first(first: Sequence[str], count: int, why: str) -> str:
    """Return what ``told_of`` does, of ``count`` nodes whose ``first_few`` are known."""
    return f"{first[0]}: {why}" if count == 1 else f"{count} nodes ({some(first, count)}): {why}"


def some(first: Sequence[str], count: int) -> str:
    """Return the ``first_few`` of ``count`` nodes in a text that tells whether there are more."""
    return ", ".join(first) + (", ..." if count > len(first) else "")


def first_few(names: Iterable[str]) -> list[str]:
    """Return the first few of ``names`` by the alphabet.

    kube-scheduler names nodes in another order each time; what is said of the same nodes stays the same text.
    """
    return heapq.nsmallest(NAMES_SHOWN, names)
