"""Watches the machine's GPUs through a session of NVML, and publishes the latest observation.

The monitor must survive every failure of the driver and of GPUs. If the driver is missing, fails or
is replaced, the monitor opens a new session after growing pauses. A GPU that has vanished
remains in the list of GPUs as unhealthy, and keeps its index.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from math import inf
from typing import Final

import pynvml  # type: ignore[import-untyped]

from gputile.api.well_known import ConditionReason
from gputile.core.devices.inventory import Inventory
from gputile.node.nvml.errors import problem_of
from gputile.node.nvml.gpu_health import Examined, Health, Sign, XidSeen, initial_health
from gputile.node.nvml.nvml_probe import NvmlSession
from gputile.node.nvml.probe import GpuReading, ProbedGpu, ProbedMachine, Problem

EXAMINE_EVERY_S: Final = 10.0
READ_EVERY_S: Final = 60.0  # reading the inventory detects changed MIG instances and modes
FIRST_RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 120.0

NOT_PROBED: Final = Problem(ConditionReason.STARTING, "the GPUs have not been read yet")
NO_INVENTORY: Final = Inventory(gpus=())


@dataclass(frozen=True, slots=True)
class Observation:
    """The machine and the health of its GPUs.

    While ``machine.down`` is set, the GPUs that were known before are listed, and are unhealthy.
    """

    machine: ProbedMachine
    health: Health


class GpuMonitor:
    """Watches the machine. A dedicated thread must call the blocking ``step`` repeatedly.

    ``known`` is the inventory that the previous agent published. Its GPUs keep their indices, and
    its unhealthy GPUs start as unhealthy. Other threads may read ``seen``, ``readings`` and
    ``xids`` without a lock, because each new value replaces the old one as a whole. ``xids`` is the
    number of XIDs since the start, by UUID and code.
    """

    def __init__(
        self,
        open_session: Callable[[], NvmlSession],
        known: Inventory = NO_INVENTORY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_session = open_session
        self._clock = clock
        self._session: NvmlSession | None = None
        self._index = {gpu.uuid: gpu.index for gpu in known.gpus}
        self._lost: frozenset[str] = frozenset()  # UUIDs that a new session of NVML may find again
        self._retry_s = FIRST_RETRY_S
        self._reopen_at_s = clock()
        self._read_at_s = self._examine_at_s = inf
        health = initial_health((gpu.uuid for gpu in known.gpus if not gpu.healthy), clock())
        self.seen = Observation(ProbedMachine(down=NOT_PROBED), health)
        self.readings: tuple[GpuReading, ...] = ()
        self.xids: Mapping[tuple[str, int], int] = {}

    def step(self, seconds: float) -> bool:
        """Watch for at most ``seconds``. Return whether the machine or a GPU's health changed."""
        before = self.seen
        try:
            if self._clock() >= self._reopen_at_s:
                self.close()
                self._session = self._open_session()
                self._reopen_at_s = inf
                self._read_at_s = self._examine_at_s = self._clock()
            due_s = min(self._reopen_at_s, self._read_at_s, self._examine_at_s)
            wait_s = max(0.0, min(seconds, due_s - self._clock()))
            if self._session is None:
                time.sleep(wait_s)
                return False
            self._apply(self._session.watch_health(wait_s))
            if self._clock() >= self._read_at_s or self.seen.machine.down is not None:
                self._read_at_s = self._clock() + READ_EVERY_S
                self._apply(self._read(self._session.inventory()))
            if self._clock() >= self._examine_at_s:
                self._examine_at_s = self._clock() + EXAMINE_EVERY_S
                self._apply(self._session.examine())
                self.readings = self._session.readings()
        except pynvml.NVMLError as error:
            self._go_down(problem_of(error.value))
        return (
            self.seen.machine != before.machine or self.seen.health.reasons != before.health.reasons
        )

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _go_down(self, problem: Problem) -> None:
        self.close()
        self._read_at_s = self._examine_at_s = inf
        self._retry_later()
        self._report_down(problem)

    def report_hang(self, seconds: float) -> None:
        """Report all GPUs as unhealthy, because ``step`` has not returned for ``seconds``.

        Another thread calls this during the step. If the step sets ``seen`` at the same moment, one
        value is lost. After a hang the next step reads the inventory, which corrects ``seen``.
        """
        text = (
            f"the NVIDIA driver has not answered for {seconds:g} s: look in the kernel's log for "
            "messages with XID or GSP, and reboot the node if the driver does not recover"
        )
        self._report_down(Problem(ConditionReason.DRIVER_ERROR, text))

    def _report_down(self, problem: Problem) -> None:
        self.readings = ()
        machine = replace(self.seen.machine, down=problem, problems=())
        # The GPUs in the previous agent's inventory count too, if none was read yet.
        uuids = _uuids(machine) or self._index
        signs = [Examined(uuid, problem.message) for uuid in uuids]
        self.seen = Observation(machine, self.seen.health.after(signs, self._clock()))

    def _retry_later(self) -> None:
        self._reopen_at_s = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def _read(self, machine: ProbedMachine) -> tuple[Sign, ...]:
        """Apply a new inventory. Return a sign for each GPU that the inventory lacks."""
        known, answering = self.seen.machine, {gpu.uuid for gpu in machine.gpus}
        vanished = [gpu for gpu in known.gpus if gpu.uuid not in answering]
        self._assign_indices(machine, first=not known.gpus)
        merged = _merged(machine, known, vanished, self._index)
        self.seen = Observation(merged, self.seen.health.without(_uuids(known) - _uuids(merged)))
        lost = problem_of(pynvml.NVML_ERROR_GPU_IS_LOST).message
        return tuple(Examined(uuid, lost) for gpu in vanished for uuid in gpu.uuids)

    def _assign_indices(self, machine: ProbedMachine, *, first: bool) -> None:
        """Assign each GPU an index that never changes.

        The driver renumbers its GPUs when a GPU vanishes, so the driver's indices are not constant.
        """
        if first:
            present = {gpu.uuid for gpu in machine.gpus}
            self._index = {uuid: index for uuid, index in self._index.items() if uuid in present}
        for gpu in machine.gpus:
            if gpu.uuid not in self._index:
                taken = set(self._index.values())
                self._index[gpu.uuid] = next(
                    i for i in chain((gpu.index,), count()) if i not in taken
                )

    def _apply(self, signs: tuple[Sign, ...]) -> None:
        if not signs:
            return
        if seen := Counter((sign.uuid, sign.code) for sign in signs if isinstance(sign, XidSeen)):
            self.xids = Counter(self.xids) + seen
        self.seen = replace(self.seen, health=self.seen.health.after(signs, self._clock()))
        examined = [sign for sign in signs if isinstance(sign, Examined)]
        lost = {sign.uuid for sign in examined if sign.fault is not None and not sign.suspected}
        self._lost = (self._lost - {sign.uuid for sign in examined} | lost) & _uuids(
            self.seen.machine
        )
        if self._lost:
            if self._reopen_at_s == inf:
                self._retry_later()
        else:
            self._retry_s, self._reopen_at_s = FIRST_RETRY_S, inf


def _uuids(machine: ProbedMachine) -> frozenset[str]:
    return frozenset(uuid for gpu in machine.gpus for uuid in gpu.uuids)


def _merged(
    now: ProbedMachine,
    known: ProbedMachine,
    vanished: Iterable[ProbedGpu],
    index: Mapping[str, int],
) -> ProbedMachine:
    """Return ``now`` with the ``vanished`` GPUs of ``known`` added, sorted by ``index``."""
    speed = {
        (one.uuid, other.uuid): machine.bandwidth[i][j]
        for machine in (known, now)
        for i, one in enumerate(machine.gpus)
        for j, other in enumerate(machine.gpus)
    }
    gpus = sorted(
        (replace(c, index=index[c.uuid]) for c in (*now.gpus, *vanished)), key=lambda gpu: gpu.index
    )
    rows = tuple(tuple(speed.get((one.uuid, other.uuid), 0.0) for other in gpus) for one in gpus)
    return replace(now, gpus=tuple(gpus), bandwidth=rows)
