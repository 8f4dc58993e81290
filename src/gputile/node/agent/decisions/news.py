"""Takes news into the agent's state: of its pods, its node, its configuration and its own files."""

from gputile.api.core import unversioned
from gputile.node.agent.decisions.events import (
    CheckpointSaved,
    Configured,
    MarksRead,
    News,
    NodeWatched,
    PodAnswered,
    PodGone,
    PodsRelisted,
    PodWatched,
    TakenOver,
)
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.pod_cache import answered_pod, apply_pod, read_again, remove_pod, replace_pods


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
