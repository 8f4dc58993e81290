"""Simulated containers whose kernels need several GPUs at once, on a clock of their own; and what they get done."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from gputile.node.arbiter.accounts import Grant, Share
from gputile.node.arbiter.node_timeslices import GpuMessages, NodeTimeSlices
from gputile.node.arbiter.timeslice_scheduler import MS


@dataclass
class Job:
    """Kernels of ``kernel`` ns, each on all of ``gpus`` at once, one after another, ``between`` ns apart.

    A kernel that has begun on one GPU keeps it until it has the others. ``processes``: one for each GPU, or one for
    all of them; ``apart``: each GPU has kernels of its own.
    """

    name: str
    gpus: tuple[str, ...]
    share: Share = field(default_factory=Share)
    kernel: int = 5 * MS
    between: int = 0
    processes: bool = False
    apart: bool = False
    starts: int = 0
    done: int = 0
    finished: list[int] = field(default_factory=list)


@dataclass
class _Part:
    """What of a job is on one GPU."""

    job: Job
    gpu: str
    member: int
    others: "list[_Part]" = field(default_factory=list)
    asked: int | None = None
    turn: int | None = None
    end: int | None = None
    submitted: bool = False
    running: bool = False
    ready_at: int = 0
    worked: int = 0


class Node:
    """Runs jobs against ``NodeTimeSlices`` until a moment."""

    def __init__(self, jobs: Sequence[Job], quantum: int = 30 * MS, longest_wait: int = 1000 * MS) -> None:
        self.turns = NodeTimeSlices(quantum, longest_wait)
        self.quantum = quantum
        self.now = 0
        self._events: list[tuple[int, int, str, _Part]] = []
        self._count = 0
        self.parts: dict[tuple[int, str], _Part] = {}
        for number, job in enumerate(jobs):
            mine = []
            for place, gpu in enumerate(job.gpus):
                self._hear(self.turns.set_share(gpu, job.name, job.share, 0))
                member = 100 * number + (place if job.processes else 0)
                mine.append(_Part(job, gpu, member, ready_at=job.starts))
            for part in mine:
                part.others = [part] if job.apart else mine
                self.parts[part.member, part.gpu] = part
                self._at(job.starts, "submit", part)

    def run(self, until: int) -> None:
        while True:
            due = {c: at for c in sorted(self.turns.gpus) if (at := self.turns.wake_at(c, self.now)) is not None}
            upcoming = self._events[0][0] if self._events else None
            following = [at for at in (*due.values(), upcoming) if at is not None and at < until]
            if not following:
                self.now = until
                return
            self.now = max(self.now, min(following))
            if upcoming is not None and upcoming <= self.now:
                _, _, what, part = heapq.heappop(self._events)
                self._happen(what, part)
            for gpu in [gpu for gpu, at in due.items() if at <= self.now]:
                self._hear(self.turns.tick(gpu, self.now))
            self._check()

    def _check(self) -> None:
        for gpu in self.turns.gpus:
            held = {self.parts[member, gpu].job.name for member in self.turns.gpus[gpu].holders}
            assert len(held) <= 1, (gpu, held)

    def _at(self, at: int, what: str, part: _Part) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what, part))

    def _happen(self, what: str, part: _Part) -> None:
        if what == "submit":
            self._submit(part)
        elif what == "end" and part.end is not None and self.now >= part.end:
            self._give_back_or_say(part)
        elif what == "finish":
            for other in part.others:
                other.submitted = other.running = False
                other.worked += part.job.kernel
                other.ready_at = self.now + part.job.between
            part.job.done += 1
            part.job.finished.append(self.now)
            for other in part.others:
                if other.end is not None and self.now >= other.end:
                    self._give_back_or_say(other)
                self._at(other.ready_at, "submit", other)

    def _submit(self, part: _Part) -> None:
        if part.submitted or self.now < part.ready_at:
            return
        if part.turn is None or (part.end is not None and self.now >= part.end):
            if part.turn is None and part.asked is None:
                part.asked = self.now
                self._hear(self.turns.want(part.gpu, part.job.name, part.member, self.now))
            return
        part.submitted = True
        if all(other.submitted for other in part.others):
            for other in part.others:
                other.running = True
            self._at(self.now + part.job.kernel, "finish", part)

    def _give_back_or_say(self, part: _Part) -> None:
        if part.turn is None:
            return
        if part.submitted:
            self._hear(self.turns.busy(part.gpu, part.member, part.turn, self.now))
            self._at(self.now + self.quantum // 2, "end", part)
            return
        turn, part.turn, part.end = part.turn, None, None
        again = self.now >= part.ready_at
        part.asked = self.now if again else None
        used, part.worked = part.worked, 0
        self._hear(self.turns.done(part.gpu, part.member, turn, used, again, self.now))

    def _hear(self, said: GpuMessages) -> None:
        for gpu, instruction in said:
            part = self.parts[instruction.member, gpu]
            if isinstance(instruction, Grant):
                assert part.asked is not None, "nobody asked"
                part.asked = None
                part.turn, part.end = instruction.turn, self.now + instruction.length if instruction.length else None
                self._at(self.now, "submit", part)
            else:
                assert part.turn == instruction.turn
                part.end = self.now + instruction.remaining
            if part.end is not None:
                self._at(part.end, "end", part)
