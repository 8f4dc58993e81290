"""Ranks nodes for a pod from 0 to 10, in the order of the nodes' names."""

from collections.abc import Sequence

from gputile.api.core import Pod
from gputile.core.devices.request import RequestError
from gputile.core.kube_predicates.pod_requests import host_request
from gputile.core.scheduling.placement_engine import PlacementEngine


def rank_pod(engine: PlacementEngine, pod: Pod, names: Sequence[str]) -> list[int]:
    """Return a rank for each of ``names``; all are 0 for a pod that asks for no GPU, or in an invalid way."""
    try:
        request = engine.request(pod)
    except RequestError:
        request = None
    return engine.rank(request, names) if request is not None else [0] * len(names)


def rank_pod_without_gpus(engine: PlacementEngine, pod: Pod, names: Sequence[str]) -> list[int] | None:
    """Return a rank for each of ``names``, for a pod that asks for no GPU; None for any other."""
    try:
        if engine.request(pod) is not None:
            return None
    except RequestError:
        return None
    if engine.demand is not None:
        engine.demand.observe(pod, None)
    return engine.rank_without_gpus(host_request(pod), names)
