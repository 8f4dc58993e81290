"""Bounds how many nodes are bought in vain.

Back-offs grow with each node that was asked for one pod, and with each failure of a type. No I/O, no clock; times are
Unix time in nanoseconds. By a clock that was set back no pause is on.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gputile.core.refusal import NodeTypeRule, Refusal

_SECOND: Final = 10**9
_FIRST_PAUSE_NS: Final = 60 * _SECOND
_LONGEST_PAUSE_NS: Final = 3600 * _SECOND
_REMEMBERED_NS: Final = 24 * 3600 * _SECOND  # so long after its pause a failure counts for how long the next pause is


@dataclass(frozen=True, slots=True)
class Order:
    """How often a node of a type was asked for a pod, when first and last, and by which Jobs last."""

    times: int
    first_ns: int
    last_ns: int
    jobs: frozenset[str]

    def pauses(self, now_ns: int) -> bool:
        """Return whether the next node is asked for later: the second at once, then after a minute, then doubling."""
        pause_ns = min(_FIRST_PAUSE_NS << min(self.times - 2, 10), _LONGEST_PAUSE_NS) if self.times > 1 else 0
        return 0 <= now_ns - self.last_ns < pause_ns


@dataclass(frozen=True, slots=True)
class _Failure:
    """How often in a row no node of a type came that is of use, the pause after that, and what happened last."""

    times: int
    at_ns: int
    pause_ns: int
    refusal: Refusal[NodeTypeRule]


class NodeBackoff:
    """The orders for pods that have no place yet, and the failures of types; their first pause lasts ``wait_ns``."""

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._orders: dict[str, dict[str, Order]] = {}  # by the pod's UID, and by type
        self._failures: dict[str, _Failure] = {}

    def ordered_types(self) -> set[str]:
        """Return the types of which a node has been asked for a pod that has no place yet."""
        return {name for orders in self._orders.values() for name in orders}

    def order(self, uid: str, type_name: str) -> Order | None:
        return self._orders.get(uid, {}).get(type_name)

    def ordered(self, uids: Iterable[str], type_name: str, jobs: Collection[str], now_ns: int) -> None:
        """Note that nodes of a type are asked for these pods now, by new placeholders of these Jobs."""
        for uid in uids:
            before = self.order(uid, type_name)
            times, first_ns = (before.times, before.first_ns) if before is not None else (0, now_ns)
            self._orders.setdefault(uid, {})[type_name] = Order(times + 1, first_ns, now_ns, frozenset(jobs))

    def settle(self, exists: Callable[[str], bool], place: Callable[[str], tuple[str, int] | None]) -> None:
        """Forget pods that are gone or have a place, and the failures of types of which a node has been of use.

        That is one which has joined since it was asked for. ``place`` returns the type of the node that a pod is bound
        to, and when that joined; None where it is not bound.
        """
        for uid, orders in list(self._orders.items()):
            found = place(uid)
            if found is None and exists(uid):
                continue
            del self._orders[uid]
            if found is not None and found[0] in orders and found[1] >= orders[found[0]].first_ns:
                self._failures.pop(found[0], None)

    def fail(self, type_name: str, refusal: Refusal[NodeTypeRule], now_ns: int) -> None:
        """Have no node of a type asked for from now on, each time for twice as long."""
        before = self._failures.get(type_name)
        if before is not None and now_ns - before.at_ns >= before.pause_ns + _REMEMBERED_NS:
            before = None
        times = before.times + 1 if before is not None else 1
        pause_ns = min(self._wait_ns << min(times - 1, 10), max(self._wait_ns, _LONGEST_PAUSE_NS))
        self._failures[type_name] = _Failure(times, now_ns, pause_ns, refusal)

    def pausing(self, type_name: str, now_ns: int) -> Refusal[NodeTypeRule] | None:
        """Return why no node of a type is asked for now, None where one may be."""
        failed = self._failures.get(type_name)
        return failed.refusal if failed is not None and 0 <= now_ns - failed.at_ns < failed.pause_ns else None

    def times_failed(self, type_name: str) -> int:
        failed = self._failures.get(type_name)
        return failed.times if failed is not None else 0
