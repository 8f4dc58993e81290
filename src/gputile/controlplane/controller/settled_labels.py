"""Remembers the labels that nodes came with, since the kubelet of a node may change most of them.

No I/O, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gputile.api.core import Node

SETTLING_NS: Final = 600 * 10**9  # cloud providers add labels to a node after it has joined


@dataclass(frozen=True, slots=True)
class _FirstLabels:
    uid: str
    first_ns: int
    labels: Mapping[str, str]


class SettledLabels:
    """The labels of each node as they were ten minutes after it was first seen; until then, as they are."""

    def __init__(self) -> None:
        self._seen: dict[str, _FirstLabels] = {}

    def put(self, node: Node, now_ns: int) -> None:
        """Take in a node; ``now_ns`` is Unix time, ns."""
        meta, seen = node.metadata, self._seen.get(node.metadata.name)
        if seen is None or seen.uid != meta.uid:
            self._seen[meta.name] = _FirstLabels(meta.uid, now_ns, meta.labels)
        elif abs(now_ns - seen.first_ns) < SETTLING_NS:
            self._seen[meta.name] = _FirstLabels(meta.uid, seen.first_ns, meta.labels)

    def drop(self, name: str) -> None:
        """Forget a node."""
        self._seen.pop(name, None)

    def label(self, name: str, key: str) -> str | None:
        """Return the value of a label of a node, None where it has none."""
        seen = self._seen.get(name)
        return seen.labels.get(key) if seen is not None else None
