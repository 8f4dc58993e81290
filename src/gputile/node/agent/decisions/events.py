"""Names what happens on a node beside the kubelet's calls, and takes news into the agent's state."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod, unversioned
from gputile.core.devices.gpu_health import Health
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.known_pods import answered_pod, apply_pod, read_again, remove_pod, replace_pods
from gputile.node.agent.state.listing import Listing
from gputile.node.agent.state.node_config import EffectiveMode
from gputile.node.agent.state.pod_devices import PodDevices
from gputile.node.nvml.probe import ProbedMachine


@dataclass(frozen=True, slots=True)
class PodWatched:
    """The watch has told of a pod of this node."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    """The watch has told that a pod is gone."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodsRelisted:
    """The watch has begun anew: these are all pods of this node."""

    pods: Sequence[Pod]


@dataclass(frozen=True, slots=True)
class PodAnswered:
    """The API server has answered a read or a write with a pod of this node."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class NodeWatched:
    """The watch has told of this node; None where it is not there."""

    node: Node | None


@dataclass(frozen=True, slots=True)
class Configured:
    """Another configuration is in force."""

    configuration: Configuration


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The checkpoint was written, or could not be."""

    written: bool


@dataclass(frozen=True, slots=True)
class TakenOver:
    """This agent has the node from now on, and goes on with what the one before it has written."""

    pods: Sequence[PodDevices]
    started: Set[str]
    effective_mode: EffectiveMode | None
    registered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MarksRead:
    """The allocation directories tell that the containers of ``started`` were let start."""

    started: Set[str]


_OfCluster = PodWatched | PodGone | PodsRelisted | PodAnswered | NodeWatched | Configured
News = _OfCluster | CheckpointSaved | TakenOver | MarksRead
"""What the state takes in without a decision."""


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


def take_in(state: AllocationState, news: News) -> bool:
    """Change the state by the news; return whether anything is new that matters here."""
    match news:
        case PodWatched(pod):
            return apply_pod(state.pods, pod, state.configuration)
        case PodGone(pod):
            remove_pod(state.pods, pod)
        case PodsRelisted(pods):
            replace_pods(state.pods, pods, state.configuration)
        case PodAnswered(pod):
            return answered_pod(state.pods, pod, state.configuration)
        case NodeWatched(node):
            before, state.node = state.node, node
            return before is None or node is None or unversioned(before) != unversioned(node)
        case Configured(configuration):
            state.configuration = configuration
            read_again(state.pods, configuration)
            state.regroup()
        case CheckpointSaved(written):
            state.advertised.unsaved = not written
        case TakenOver(held, started, effective_mode, registered):
            state.device_table = DeviceTable(held, started)
            state.regroup()
            state.advertised.effective_mode, state.advertised.registered = effective_mode, registered
        case MarksRead(started):
            state.device_table.see_started(started)
    return True
