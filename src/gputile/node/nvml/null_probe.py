"""Stands in on a machine without a usable driver: it advertises nothing and says why (L1)."""

import time

from gputile.core.devices.gpu_health import Sign
from gputile.node.nvml.errors import Problem
from gputile.node.nvml.probe import GpuReading, ProbedMachine


class NullProbe:
    """No GPUs, and the problem that explains it."""

    def __init__(self, problem: Problem) -> None:
        self._machine = ProbedMachine(down=problem)

    def inventory(self) -> ProbedMachine:
        """Return a machine without GPUs."""
        return self._machine

    def watch_health(self, seconds: float) -> tuple[Sign, ...]:
        """Wait: nothing happens to no GPUs."""
        time.sleep(seconds)
        return ()

    def examine(self) -> tuple[Sign, ...]:
        """Return no signs."""
        return ()

    def readings(self) -> tuple[GpuReading, ...]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""
