"""Looks around on the node: its GPUs, other device plugins, whether mode ``mps`` can be served."""

from pathlib import Path

from gputile.api.well_known import Mode
from gputile.core.devices.gpu_health import Health, HealthState
from gputile.node.agent.decisions.advertising.other_plugin import SOCKET_PATTERNS
from gputile.node.agent.decisions.events import MachineSeen, SurroundingsSeen
from gputile.node.agent.host import GpuMonitor
from gputile.node.agent.processes.mps import MpsDaemons
from gputile.node.gateway.sockets import answers


class Surroundings:
    """What is on the node. ``device_plugins`` is the kubelet's directory of plugins' sockets."""

    def __init__(self, monitor: GpuMonitor, mps: MpsDaemons, device_plugins: Path) -> None:
        self._monitor = monitor
        self._mps = mps
        self._device_plugins = device_plugins

    def machine(self, *, free: bool = False, keep_unit: bool = False) -> MachineSeen:
        """Return what was last seen of the GPUs, and what is to be done with them by then; see ``MachineSeen``.

        A GPU whose MPS control daemon does not run is as unhealthy as any other that no pod can use.
        """
        seen = self._monitor.seen
        idle = {
            uuid: HealthState(healthy=False, reason=f"its MPS control daemon does not run: {why}")
            for uuid, why in self._mps.without_daemon.items()
            if seen.health.healthy(uuid)
        }
        health = Health({**seen.health.conditions, **idle}) if idle else seen.health
        return MachineSeen(seen.machine, health, free=free, keep_unit=keep_unit)

    def around(self, mode: Mode) -> SurroundingsSeen:
        """Return what else there is on a node in this mode."""
        found = (path for pattern in SOCKET_PATTERNS for path in self._device_plugins.glob(pattern))
        return SurroundingsSeen(tuple(path.name for path in found if answers(path)), self.mps_problem(mode))

    def mps_problem(self, mode: Mode) -> str | None:
        """Return why mode ``mps`` cannot be served; None where it can, or another mode is in force."""
        return self._mps.problem if mode is Mode.MPS else None
