"""Keeps the last changes of something, so that who looks again sees only what has changed since."""

from typing import Generic, TypeVar

Change = TypeVar("Change")


class RecentChanges(Generic[Change]):
    """A log of changes, bounded: who fell behind further than the log reaches begins anew."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._changes: list[Change] = []
        self._base = 0

    @property
    def position(self) -> int:
        """The number of changes so far: what to pass to ``since`` the next time."""
        return self._base + len(self._changes)

    def add(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) >= 2 * self._keep:
            self._base += self._keep
            del self._changes[: self._keep]

    def reaches(self, position: int) -> bool:
        return position >= self._base

    def since(self, position: int) -> list[Change]:
        """Return the changes since ``position``, to which the log has to reach."""
        return self._changes[position - self._base :]
