"""Decides which turns begin now where containers use several GPUs together.

Which GPUs a container uses together is learned from what its processes do.

Turns begin by conservative backfilling. Candidates are taken in the order of their rank. Each gets the earliest time at
which all of its GPUs are free of those before it; one for whom that is now begins, on all of its GPUs or on none. One
that comes later in the order may use a GPU meanwhile if it gives it back before the first of them needs it. So nobody
is kept from a GPU by those after him, and nobody holds one GPU while it waits for another. Kernels may end later than
their turns: one that has waited for long has its GPUs kept free of those after it.

No clock and no I/O; times are nanoseconds.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gputile.node.arbiter.timeslice_scheduler import MS, Rank

USED_WITHIN: Final = 1000 * MS  # a process that wants two GPUs within that time uses them together
TOGETHER_FOR: Final = 10_000 * MS  # after the last sign of it


class JointGpus:
    """The GPUs that each container uses together: those of one process, and those that it was seen to need at once."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, dict[str, int]] = {}
        self._wanted: dict[Hashable, dict[int, dict[str, int]]] = {}  # container -> process -> GPU -> when

    def wants(self, key: Hashable, member: int, gpu: str, now: int) -> set[str]:
        """Record that a process of a container wants a GPU; return all GPUs that it has wanted lately."""
        wanted = self._wanted.setdefault(key, {}).setdefault(member, {})
        wanted[gpu] = now
        return {other for other, at in wanted.items() if now - at <= USED_WITHIN}

    def note(self, key: Hashable, gpus: Iterable[str], now: int) -> None:
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
        for key in [key for key, members in self._wanted.items() if member in members]:
            del self._wanted[key][member]
            if not self._wanted[key]:
                del self._wanted[key]

    def forget(self, key: Hashable, gpu: str) -> None:
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
        return len(self._seen.keys() | self._wanted.keys())


@dataclass(frozen=True, slots=True)
class TurnCandidate:
    """A container that wants a turn on all of ``gpus``; with ``until`` it only keeps them free until then.

    ``kept_for`` is how long its GPUs are kept for it from those after it, as these may give them back too late.
    """

    rank: Rank
    key: Hashable
    gpus: tuple[str, ...]
    until: int | None = None
    kept_for: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """A turn that begins now; ``by`` is when others need one of its GPUs, None if nobody is known to."""

    key: Hashable
    gpus: tuple[str, ...]
    by: int | None


@dataclass(slots=True)
class _SharedGpu:
    idle: bool
    queued_until: int  # those before are done with it
    needed_at: int | None = None  # when the first of them begins


def turns_to_begin(
    now: int, candidates: Iterable[TurnCandidate], busy_until: Mapping[str, int | None], quantum: int, least: int
) -> list[Begin]:
    """Return the turns that begin at ``now``.

    ``busy_until`` is when each GPU can be expected to be free, None for one that is. A turn is taken to last a
    quantum; one that would have to end in less than ``least`` is not worth its while.
    """
    gpus = {uuid: _SharedGpu(until is None, now if until is None else until) for uuid, until in busy_until.items()}
    begun: list[Begin] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.rank):
        mine = [gpus[gpu] for gpu in candidate.gpus]
        start = max(gpu.queued_until for gpu in mine)
        if candidate.until is not None:
            for gpu in mine:
                gpu.queued_until = max(gpu.queued_until, candidate.until)
                gpu.needed_at = now if gpu.needed_at is None else gpu.needed_at
            continue
        needed = [gpu.needed_at for gpu in mine if gpu.needed_at is not None]
        by = min(needed, default=None)
        idle = all(gpu.idle for gpu in mine)
        if idle and ((by is None and start <= now) or (by is not None and by - now >= least)):
            begun.append(Begin(candidate.key, candidate.gpus, by))
            for gpu in mine:
                gpu.idle, gpu.needed_at = False, now
                gpu.queued_until = max(gpu.queued_until, now + quantum)
            continue
        needed_at = now if start - now <= candidate.kept_for else start
        for gpu in mine:
            gpu.needed_at = needed_at if gpu.needed_at is None else min(gpu.needed_at, needed_at)
            gpu.queued_until = max(start, now) + quantum
    return begun
