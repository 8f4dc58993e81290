"""Decides which turns begin now.

The candidates are the containers that want a turn. The algorithm is conservative backfilling.
Candidates are planned in the order of their rank, each for the earliest time at which no
higher-ranked candidate needs any of its GPUs. If this time is now, the candidate gets a turn on all
its GPUs. A lower-ranked candidate may use a GPU until a higher-ranked candidate needs the GPU. So
no candidate waits for a lower-ranked one, and none occupies a GPU while it waits for another GPU.
Work on a GPU may outlast its turn and delay a candidate. Therefore, once a candidate has waited for
long, its GPUs are reserved for it.

This module uses no clock and no I/O. All times are in nanoseconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gputile.node.arbiter.timeslice_scheduler import Rank


@dataclass(frozen=True, slots=True)
class TurnCandidate:
    """A container that wants a turn on all of ``gpus``.

    If ``reserved_until`` is set, the container does not begin a turn now, but the GPUs stay
    reserved for it until that time. If all GPUs will be free within ``reserve_within``, no
    lower-ranked candidate can use them before this candidate.
    """

    rank: Rank
    container: str
    gpus: tuple[str, ...]
    reserved_until: int | None = None
    reserve_within: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """A turn that begins now.

    ``by`` is the time when a higher-ranked candidate needs one of ``gpus``, or None.
    """

    container: str
    gpus: tuple[str, ...]
    by: int | None


@dataclass(slots=True)
class _SharedGpu:
    idle: bool
    queued_until: int  # when all candidates that are planned so far have returned the GPU
    needed_at: int | None = None  # when the first of these candidates begins on the GPU


def turns_to_begin(
    now: int,
    candidates: Iterable[TurnCandidate],
    busy_until: Mapping[str, int | None],
    quantum: int,
    least: int,
) -> list[Begin]:
    """Return the turns that begin at ``now``.

    ``busy_until`` contains the time when each GPU is expected to be free, or None for a free GPU. A
    turn is assumed to last one ``quantum``. A turn does not begin if a higher-ranked candidate
    needs one of its GPUs within ``least``.
    """
    gpus = {
        uuid: _SharedGpu(until is None, now if until is None else until)
        for uuid, until in busy_until.items()
    }
    begun: list[Begin] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.rank):
        wanted = [gpus[gpu] for gpu in candidate.gpus]
        start = max(gpu.queued_until for gpu in wanted)
        if candidate.reserved_until is not None:
            for gpu in wanted:
                gpu.queued_until = max(gpu.queued_until, candidate.reserved_until)
                gpu.needed_at = now if gpu.needed_at is None else gpu.needed_at
            continue
        needed = [gpu.needed_at for gpu in wanted if gpu.needed_at is not None]
        by = min(needed, default=None)
        idle = all(gpu.idle for gpu in wanted)
        if idle and ((by is None and start <= now) or (by is not None and by - now >= least)):
            begun.append(Begin(candidate.container, candidate.gpus, by))
            for gpu in wanted:
                gpu.idle, gpu.needed_at = False, now
                gpu.queued_until = max(gpu.queued_until, now + quantum)
            continue
        needed_at = now if start - now <= candidate.reserve_within else start
        for gpu in wanted:
            gpu.needed_at = needed_at if gpu.needed_at is None else min(gpu.needed_at, needed_at)
            gpu.queued_until = max(start, now) + quantum
    return begun
