"""Tells the nominations that the controller has written from those of others, which it leaves alone."""

from gputile.api.core import Pod
from gputile.api.well_known import NOMINATED_ANNOTATION
from gputile.core.devices.reservation import reservation_of


def own_nomination(pod: Pod) -> str:
    """Return the node that the controller has nominated for a pod; "" for none, and for one that is somebody else's.

    One request writes node and annotation. Who nominates another node leaves the annotation, which then says nothing.
    Where GPUs are kept for the pod, preemption has nominated the node.
    """
    node = pod.status.nominated_node_name
    ours = pod.metadata.annotations.get(NOMINATED_ANNOTATION) == node and reservation_of(pod) is None
    return node if ours else ""
