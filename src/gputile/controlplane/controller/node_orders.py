"""Counts node requests per pod and failures per node type; back-offs grow with both.

No I/O, no clock.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gputile.core.refusal import NodeTypeRule, Refusal

_SECOND: Final = 10**9
_FIRST_PAUSE_SECONDS: Final = 60
_LONGEST_PAUSE_SECONDS: Final = 3600
_REMEMBERED_SECONDS: Final = 24 * 3600  # so long after its pause a failure counts for how long the next pause is


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


@dataclass(frozen=True, slots=True)
class _Failed:
    """How often in a row no node of a type came that is of use, and for how long and until when none is asked for (ns).

    ``again_ns`` is Unix time. By a clock that was set back it is further away than the pause is long: then none is on.
    ``refusal`` says what happened the last time.
    """

    times: int
    pause_ns: int
    again_ns: int
    refusal: Refusal[NodeTypeRule]


class TypeFailures:
    """The failures by the types' names. The first pause lasts ``wait_ns``, each further one twice as long."""

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._failed: dict[str, _Failed] = {}

    def fail(self, type_name: str, refusal: Refusal[NodeTypeRule], now_ns: int) -> None:
        """Have no node of a type asked for from now on, for a while."""
        before = self._failed.get(type_name)
        times = before.times + 1 if before is not None else 1
        longest_ns = max(self._wait_ns, _LONGEST_PAUSE_SECONDS * _SECOND)
        pause_ns = min(self._wait_ns << min(times - 1, 10), longest_ns)
        self._failed[type_name] = _Failed(times, pause_ns, now_ns + pause_ns, refusal)

    def pausing(self, type_name: str, now_ns: int) -> Refusal[NodeTypeRule] | None:
        """Return why no node of a type is asked for now, None where one may be."""
        failed = self._failed.get(type_name)
        return failed.refusal if failed is not None and 0 < failed.again_ns - now_ns <= failed.pause_ns else None

    def times(self, type_name: str) -> int:
        failed = self._failed.get(type_name)
        return failed.times if failed is not None else 0

    def forgive(self, type_names: Iterable[str]) -> None:
        for name in type_names:
            self._failed.pop(name, None)

    def forget_old(self, now_ns: int) -> None:
        remembered_ns = _REMEMBERED_SECONDS * _SECOND
        self._failed = {name: each for name, each in self._failed.items() if now_ns - each.again_ns < remembered_ns}
