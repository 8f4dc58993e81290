"""Decides which turns begin now where containers want several GPUs: conservative backfilling.

Candidates are taken in the order of their rank. Each gets the earliest time at which all of its GPUs are free of those
before it; one for whom that is now begins, on all of its GPUs or on none. One that comes later in the order may use a
GPU meanwhile if it gives it back before the first of them needs it. So nobody is kept from a GPU by those after
him, and nobody holds one GPU while it waits for another. Kernels may end later than their turns: one that has waited
for long has its GPUs kept free of those after it. No clock and no I/O; times are nanoseconds.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from gputile.node.arbiter.timeslice_scheduler import Rank


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
