"""Programs that keep simulated GPUs busy in the name of containers of the real node, in turns given by its arbiter."""

import contextlib
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.cuda import FakeGpus
from tests.integration.arbiter.busy import Busy
from tests.soak.system.findings import Findings

AT_ONCE = 2
KERNEL_NS = 2_000_000
STARVES_AFTER_S = 60.0  # without a kernel that was done, whatever happens to the arbiter


@dataclass
class _Program:
    busy: Busy
    allocation: Path
    gpu: int
    until: float
    had: int = 0
    since: float = 0.0


class Programs:
    """At most two at once, each for some seconds, of containers that have their allocations in ``state``.

    Each is a process outside of the container, since the containers' own program is static; what it speaks to is the
    container's socket. ``look`` is called every second.
    """

    def __init__(self, gpus: FakeGpus, state: Path, findings: Findings, choice: random.Random) -> None:
        self._gpus, self._allocations, self._findings, self._choice = gpus, state / "allocations", findings, choice
        self._running: list[_Program] = []

    def __enter__(self) -> "Programs":
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._running:
            program.busy.__exit__()
        self._running.clear()

    def look(self) -> None:
        """End those whose time is over or whose container is gone, and begin others."""
        for program in list(self._running):
            self._watch(program)
        known = {program.allocation for program in self._running}
        free = [path for path in self._allocations.iterdir() if path not in known and (path / "time.sock").exists()]
        if free and len(self._running) < AT_ONCE:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # it has just gone
                self._begin(self._choice.choice(free))

    def _begin(self, allocation: Path) -> None:
        gpus = json.loads((allocation / "limits.json").read_text()).get("cards", [])
        if not gpus:  # the container has not started
            return
        gpu = self._gpus.uuids.index(gpus[0]["uuid"])
        busy = Busy(self._gpus, allocation / "time.sock", kernel_ns=KERNEL_NS, indices=(gpu,))
        busy.begin()
        now = time.monotonic()
        self._running.append(_Program(busy, allocation, gpu, now + self._choice.uniform(5, 20), since=now))
        self._findings.count("programs on the real node's GPUs")

    def _watch(self, program: _Program) -> None:
        now, had = time.monotonic(), program.busy.busy(program.gpu)
        if had > program.had:
            self._findings.lasted("a program without its GPU", now - program.since, program.allocation.name)
            program.had, program.since = had, now
        there, ended = program.allocation.exists(), program.busy.process.poll()
        if ended is not None:
            self._findings.violated("programs run on", f"{program.allocation.name} ended with {ended}")
        elif there and now - program.since > STARVES_AFTER_S:
            text = f"{program.allocation.name} had no GPU for {now - program.since:.0f} s"
            self._findings.violated("nobody starves", text, key=program.allocation.name)
        elif there and now < program.until:
            return
        program.busy.__exit__()
        self._running.remove(program)
