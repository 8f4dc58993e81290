"""Counts the nodes that were asked for each pod: ever longer passes between one and the next.

No I/O, no clock.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

_SECOND: Final = 10**9
_FIRST_PAUSE_SECONDS: Final = 60
_LONGEST_PAUSE_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class Order:
    """How often a node of a type was asked for a pod, when first and last (Unix time, ns), and by which Jobs last."""

    times: int
    first_ns: int
    last_ns: int
    jobs: frozenset[str]

    @property
    def pause_seconds(self) -> int:
        """How long after the last node the next one may be asked for: at once, then a minute, then twice as long."""
        if self.times < 2:
            return 0
        return min(_FIRST_PAUSE_SECONDS << min(self.times - 2, 10), _LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Place:
    """The node that a pod is bound to: its type, "" for none, and when it was seen to join (Unix ns), 0 for never."""

    type_name: str
    joined_ns: int


class NodeOrders:
    """The orders for pods that have no place yet, by UID and by type."""

    def __init__(self) -> None:
        self._orders: dict[str, dict[str, Order]] = {}

    def types(self) -> set[str]:
        """Return the types of which a node has been asked for a pod that has no place yet."""
        return {name for orders in self._orders.values() for name in orders}

    def order(self, uid: str, type_name: str) -> Order | None:
        """Return what was asked for a pod, None for nothing."""
        return self._orders.get(uid, {}).get(type_name)

    def note(self, uids: Iterable[str], type_name: str, jobs: Collection[str], now_ns: int) -> None:
        """Note that nodes of a type are asked for these pods now, by new placeholders of these Jobs."""
        for uid in uids:
            orders = self._orders.setdefault(uid, {})
            before = orders.get(type_name)
            times, first_ns = (before.times, before.first_ns) if before is not None else (0, now_ns)
            orders[type_name] = Order(times + 1, first_ns, now_ns, frozenset(jobs))

    def pauses(self, uid: str, type_name: str, now_ns: int) -> bool:
        """Return whether no further node of a type is asked for a pod yet.

        By a clock that was set back the last order is still to come: then none pauses.
        """
        order = self.order(uid, type_name)
        return order is not None and 0 <= now_ns - order.last_ns < order.pause_seconds * _SECOND

    def settle(self, exists: Callable[[str], bool], place: Callable[[str], Place | None]) -> set[str]:
        """Forget pods that are gone or have a place; return the types of which a node has been of use.

        That is one which has joined since it was asked for. ``place`` tells a bound pod's place, None for no such pod.
        """
        kept, proved = {}, set()
        for uid, orders in self._orders.items():
            found = place(uid)
            if found is None and exists(uid):
                kept[uid] = orders
            order = orders.get(found.type_name) if found is not None else None
            if found is not None and order is not None and found.joined_ns >= order.first_ns:
                proved.add(found.type_name)
        self._orders = kept
        return proved
