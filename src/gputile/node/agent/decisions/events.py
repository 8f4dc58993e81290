"""Names what decisions are given of what happens on a node, beside the kubelet's calls."""

from collections.abc import Set
from dataclasses import dataclass

from gputile.core.devices.gpu_health import Health
from gputile.node.agent.state.listing import Listing
from gputile.node.nvml.probe import ProbedMachine


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """The machine's GPUs are as ``machine`` and ``health`` say.

    ``free`` says that no pod can be on its way to the node any more: it has been closed for long enough. ``keep_unit``
    puts off another memory unit.
    """

    machine: ProbedMachine
    health: Health
    free: bool = False
    keep_unit: bool = False


@dataclass(frozen=True, slots=True)
class SurroundingsSeen:
    """What else there is on the node: ``sockets`` of other device plugins that answer, by their names.

    ``mps_problem`` says why mode ``mps`` cannot be served; None where it can, or another mode is in force.
    """

    sockets: tuple[str, ...] = ()
    mps_problem: str | None = None


@dataclass(frozen=True, slots=True)
class PodsListed:
    """The kubelet has listed who has which devices.

    ``epoch`` is when this kubelet was first seen, and ``settled`` says that it has had time to list its own pods again.
    ``started`` are the allocation directories that tell that their container was let start. ``synced`` says that the
    API server's pods are complete. ``now`` is on the monotonic clock, in seconds, ``now_ns`` is Unix time.
    """

    listing: Listing
    epoch: float
    settled: bool
    started: Set[str]
    synced: bool
    now: float
    now_ns: int
