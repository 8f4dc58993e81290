"""Learns which GPUs a container uses together, by what its processes do.

No clock and no I/O; times are nanoseconds.
"""

from collections.abc import Hashable, Iterable
from typing import Final

from gputile.node.arbiter.timeslice_scheduler import MS

USED_WITHIN: Final = 1000 * MS  # a process that wants two GPUs within that time uses them together
TOGETHER_FOR: Final = 10_000 * MS  # after the last sign of it


class JointGpus:
    """The GPUs that each container uses together: those of one process, and those that it was seen to need at once."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, dict[str, int]] = {}
        self._wanted: dict[Hashable, dict[int, dict[str, int]]] = {}  # container -> process -> GPU -> when

    def wants(self, key: Hashable, member: int, gpu: str, now: int) -> set[str]:
        """Take note that a process of a container wants a GPU; return all that it has wanted lately."""
        wanted = self._wanted.setdefault(key, {}).setdefault(member, {})
        wanted[gpu] = now
        return {other for other, at in wanted.items() if now - at <= USED_WITHIN}

    def note(self, key: Hashable, gpus: Iterable[str], now: int) -> None:
        """Take note that a container uses these GPUs together."""
        self._seen.setdefault(key, {}).update(dict.fromkeys(gpus, now))

    def of(self, key: Hashable, now: int) -> tuple[str, ...]:
        """Return the GPUs that a container uses together, in a fixed order; none where it uses single ones."""
        seen = self._seen.get(key)
        if not seen:
            return ()
        found = sorted(gpu for gpu, at in seen.items() if now - at <= TOGETHER_FOR)
        if len(found) < len(seen):
            self._seen[key] = {gpu: seen[gpu] for gpu in found}
        return tuple(found) if len(found) > 1 else ()

    def ends(self, key: Hashable, now: int) -> bool:
        """Return whether a container has not used some of its GPUs together with the others for too long by now."""
        seen = self._seen.get(key)
        return not seen or now - min(seen.values()) > TOGETHER_FOR

    def forget_member(self, member: int) -> None:
        """Forget a process that has gone."""
        for key in [key for key, members in self._wanted.items() if member in members]:
            del self._wanted[key][member]
            if not self._wanted[key]:
                del self._wanted[key]

    def forget(self, key: Hashable, gpu: str) -> None:
        """Forget that a container used a GPU, and its processes wanted it."""
        seen = self._seen.get(key, {})
        seen.pop(gpu, None)
        if not seen:
            self._seen.pop(key, None)
        members = self._wanted.get(key, {})
        for member in [member for member, wanted in members.items() if wanted.keys() <= {gpu}]:
            del members[member]
        for wanted in members.values():
            wanted.pop(gpu, None)
        if not members:
            self._wanted.pop(key, None)

    def __len__(self) -> int:
        """How many containers anything is kept of."""
        return len(self._seen.keys() | self._wanted.keys())
