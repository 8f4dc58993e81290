"""Keeps the cluster as it will be once pods are bound to their nominated nodes. No I/O, no clock.

It is a count of its own, fed by the same watches: nothing of it is ever booked in the controller's ledger, and no pod
is bound by it. A pod that has a nominated node counts there as if it were bound, with the GPUs that it would get now.
So two pods are not nominated to the same room.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import ObjectMeta, Pod
from gputile.controlplane.controller.cluster_state import ClusterState
from gputile.controlplane.controller.nominations.nominable_pods import is_over
from gputile.core.devices.request import RequestError
from gputile.core.devices.reservation import reservation_of
from gputile.core.placement.steps import Steps, at_once
from gputile.core.scheduling.decision import Decision
from gputile.kube.objects import Applied, Deleted, Replaced, WatchEvent

MOST_CANDIDATES: Final = 32  # nodes that kube-scheduler's own checks are made of, for one pod


@dataclass(frozen=True, slots=True)
class NominatedPlace:
    """The node of a nomination, and what the Binding of the pod would write into it now."""

    node: str
    annotations: dict[str, str]


class NominatedCluster:
    """One event loop owns it; ``state`` is fed with the events of nodes directly.

    ``nominated`` are the unbound pods with a nominated node, as known last, by UID. Where the configuration says
    ``packing``, places are chosen by the policy ``binpack``: prices take long to learn.
    """

    def __init__(self, configuration: Configuration) -> None:
        if configuration.placement == "packing":
            configuration = msgspec.structs.replace(configuration, placement="binpack")
        self.state = ClusterState(configuration)
        self.nominated: dict[str, Pod] = {}
        self._places: dict[str, NominatedPlace] = {}

    # -- what the watches tell

    def pod_event(self, event: WatchEvent[Pod]) -> Steps[None]:
        """Take an event of the pods' watch, in steps."""
        match event:
            case Applied(pod):
                self.put(pod)
            case Deleted(pod):
                self._drop(pod.metadata.uid)
                yield from self.state.pod_event(event)
            case Replaced(pods, unreadable):
                kept = {pod.metadata.uid for pod in pods} | {each.uid for each in unreadable}
                for uid in (self._places.keys() | self.nominated.keys()) - kept:
                    self._drop(uid)
                    yield
                counted = []
                for pod in pods:
                    if is_over(pod):
                        self._drop(pod.metadata.uid)
                    counted.append(self._as_nominated(pod))
                    yield
                yield from self.state.pod_event(Replaced(counted, unreadable))
                for pod in pods:
                    if pod.status.nominated_node_name or pod.metadata.uid in self._places:
                        self.put(pod)
                    yield
            case _:
                yield from self.state.pod_event(event)

    def put(self, pod: Pod) -> None:
        """Count a pod as it is now: at its node, or at the one that is nominated for it. Older versions say nothing."""
        if self.state.is_old(pod):
            return
        uid, node = pod.metadata.uid, pod.status.nominated_node_name
        if is_over(pod) or reservation_of(pod) is not None:
            self._drop(uid)
        else:
            place = self._places.get(uid)
            if node:
                self.nominated[uid] = pod
            elif self.nominated.pop(uid, None) is not None:
                self._take_back(uid)
            if node and (place is None or place.node != node):
                self._take_back(uid)
                self._places[uid] = self._place_on(pod, node)
        self._count(self._as_nominated(pod))

    # -- places

    def tick(self, now_ns: int) -> None:
        """Set the time to ``now_ns``, Unix time in nanoseconds: reservations end."""
        self.state.tick(now_ns)

    def choose(self, pod: Pod) -> Steps[str]:
        """Return, in steps, the best node for a pod, where it counts from now on; "" where it has none."""
        placement = self.state.placement
        request = None
        try:
            request = placement.engine.request(pod)
        except RequestError:
            return ""  # the extender tells
        if request is None:
            return ""
        names = list(self.state.ledger.row_of)
        best = placement.engine.best_first(request, names)[:MOST_CANDIDATES]
        yield
        for name in best:
            if (yield from placement.predicates.reason(pod, name)) is None:
                decision = placement.engine.decide(request, name, self.state.now_ns)
                if isinstance(decision, Decision):
                    self._places[pod.metadata.uid] = NominatedPlace(name, decision.annotations(pod))
                    self._count(self._as_nominated(pod))
                    return name
            yield
        return ""

    def release(self, pod: Pod) -> None:
        """Count an unbound pod at no node, unless one is nominated for it as the pod is known here."""
        uid = pod.metadata.uid
        if uid not in self.nominated and self._take_back(uid):
            self._count(pod)

    def forget(self, pod: Pod) -> None:
        """Count a pod no longer: there is none of this UID any more."""
        self._drop(pod.metadata.uid)
        at_once(self.state.pod_event(Deleted(pod)))

    def is_open(self, name: str) -> bool:
        """Return whether a node is there and takes pods."""
        node = self.state.nodes.get(name)
        return node is not None and not node.spec.unschedulable

    def is_left_for(self, pod: Pod, name: str) -> bool:
        """Return whether a pod of lower priority is about to go from a node, as after kube-scheduler's preemption."""
        priority = pod.spec.priority or 0
        others = self.state.placement.predicates.pods_on(name)
        return any(each.metadata.deletion_timestamp and (each.spec.priority or 0) < priority for each in others)

    # -- within

    def _count(self, pod: Pod) -> None:
        at_once(self.state.pod_event(Applied(pod)))

    def _drop(self, uid: str) -> None:
        self.nominated.pop(uid, None)
        self._take_back(uid)

    def _take_back(self, uid: str) -> bool:
        """Count a pod at its nominated node no longer; return whether it did. No pod is ever unbound: it goes."""
        if self._places.pop(uid, None) is None:
            return False
        at_once(self.state.pod_event(Deleted(Pod(metadata=ObjectMeta(uid=uid)))))
        return True

    def _as_nominated(self, pod: Pod) -> Pod:
        """Return the pod as if it were bound to the place that is known for it."""
        place = self._places.get(pod.metadata.uid)
        if place is None or is_over(pod):
            return pod
        annotations = pod.metadata.annotations | place.annotations
        meta = msgspec.structs.replace(pod.metadata, annotations=annotations)
        return msgspec.structs.replace(pod, metadata=meta, spec=msgspec.structs.replace(pod.spec, node_name=place.node))

    def _place_on(self, pod: Pod, node: str) -> NominatedPlace:
        """Return a place on a node that others have nominated.

        Where no GPU has room, as pods are still to leave for it, the pod counts there without GPUs: the ledger then
        lets no other one on the node.
        """
        engine = self.state.placement.engine
        try:
            request = engine.request(pod)
        except RequestError:
            request = None
        decision = engine.decide(request, node, self.state.now_ns) if request is not None else None
        return NominatedPlace(node, decision.annotations(pod) if isinstance(decision, Decision) else {})
