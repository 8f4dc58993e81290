"""Remembers which node types have failed, and for how long no node of them is asked for.

No I/O, no clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gputile.core.devices.node_type import NodeTypeRefusal

_SECOND: Final = 10**9
_LONGEST_PAUSE_SECONDS: Final = 3600
_REMEMBERED_SECONDS: Final = 24 * 3600  # so long after its pause a failure counts for how long the next pause is


@dataclass(frozen=True, slots=True)
class _Failed:
    """How often in a row no node of a type came that is of use, and for how long and until when none is asked for (ns).

    ``again_ns`` is Unix time. By a clock that was set back it is further away than the pause is long: then none is on.
    ``refusal`` says what happened the last time.
    """

    times: int
    pause_ns: int
    again_ns: int
    refusal: NodeTypeRefusal


class TypeFailures:
    """The failures by the types' names. The first pause lasts ``wait_ns``, each further one twice as long."""

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._failed: dict[str, _Failed] = {}

    def fail(self, type_name: str, refusal: NodeTypeRefusal, now_ns: int) -> None:
        """Have no node of a type asked for from now on, for a while."""
        before = self._failed.get(type_name)
        times = before.times + 1 if before is not None else 1
        longest_ns = max(self._wait_ns, _LONGEST_PAUSE_SECONDS * _SECOND)
        pause_ns = min(self._wait_ns << min(times - 1, 10), longest_ns)
        self._failed[type_name] = _Failed(times, pause_ns, now_ns + pause_ns, refusal)

    def pausing(self, type_name: str, now_ns: int) -> NodeTypeRefusal | None:
        """Return why no node of a type is asked for now, None where one may be."""
        failed = self._failed.get(type_name)
        return failed.refusal if failed is not None and 0 < failed.again_ns - now_ns <= failed.pause_ns else None

    def times(self, type_name: str) -> int:
        """Return how often in a row no node of a type came that is of use."""
        failed = self._failed.get(type_name)
        return failed.times if failed is not None else 0

    def forgive(self, type_names: Iterable[str]) -> None:
        """Forget the failures of types of which a node has been of use."""
        for name in type_names:
            self._failed.pop(name, None)

    def forget_old(self, now_ns: int) -> None:
        """Forget the failures that are so long ago that they mean nothing."""
        remembered_ns = _REMEMBERED_SECONDS * _SECOND
        self._failed = {name: each for name, each in self._failed.items() if now_ns - each.again_ns < remembered_ns}
