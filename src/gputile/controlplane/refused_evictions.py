"""Remembers whose eviction the API server refused, so that for a while others are chosen.

A budget tells only some of the reasons for a refusal; admission webhooks have others. A pod that is refused again and
again is asked for ever more rarely, and always again in the end.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gputile.kube.errors import ApiError, KubeError

FIRST_PAUSE_S = 60.0
LONGEST_PAUSE_S = 960.0
_OF_THE_SERVER = (401, 503, 504)  # these are said of no pod


class _RefusedEviction(NamedTuple):
    """When a pod was refused the last time, and for how long it is not chosen after that; seconds."""

    at: float
    pause: float


class RefusedEvictions:
    """``seconds`` is a clock; where it jumps, pauses end. It remembers no pods but those that ``is_bound``."""

    def __init__(self, seconds: Callable[[], float], is_bound: Callable[[str], bool]) -> None:
        self._seconds, self._is_bound = seconds, is_bound
        self._refused: dict[str, _RefusedEviction] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def refused(self, uid: str, error: KubeError) -> None:
        """Note that an eviction failed; what is no answer about the pod counts nothing."""
        if not isinstance(error, ApiError) or error.status in _OF_THE_SERVER:
            return
        now = self._seconds()
        self._refused = {each: known for each, known in self._refused.items() if self._is_remembered(each, known, now)}
        before = self._refused.get(uid)
        pause = FIRST_PAUSE_S
        if before is not None:
            pause = before.pause if now - before.at < before.pause else min(2 * before.pause, LONGEST_PAUSE_S)
        self._refused[uid] = _RefusedEviction(now, pause)

    def among(self, uids: Iterable[str]) -> list[str]:
        """Return those of the pods that are not to be chosen now."""
        now = self._seconds()
        return [
            uid for uid in uids if (known := self._refused.get(uid)) is not None and 0 <= now - known.at < known.pause
        ]

    def first(self, uids: Sequence[str]) -> list[str]:
        """Return pods in the order in which to evict them: first those that may be refused, before others have left."""
        return sorted(uids, key=lambda uid: uid not in self._refused)

    def _is_remembered(self, uid: str, known: _RefusedEviction, now: float) -> bool:
        return self._is_bound(uid) and 0 <= now - known.at < known.pause + LONGEST_PAUSE_S
