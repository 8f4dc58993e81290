"""Stores placeholders, the pods of gangs, and the pods that kube-scheduler found unschedulable."""

from collections.abc import Sequence

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import POD_SCHEDULED, SCHEDULING_GATED, Pod
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.gang_membership import GangName, gang_of
from gputile.core.devices.node_type import is_placeholder
from gputile.core.devices.request import requests_gpu


class WaitingPods:
    """The unbound pods by UID.

    ``refused`` contains GPU pods that kube-scheduler found unschedulable and for which it nominated
    no node. Pods of gangs are excluded if gangs are enabled. ``preemptors`` contains unschedulable
    GPU pods that may preempt, and pods that have a reservation for preemption. Placeholders are
    recognized only in ``namespace``, so that tenants cannot create pods that count as placeholders.
    """

    def __init__(self, configuration: Configuration, namespace: str) -> None:
        self.refused: dict[str, Pod] = {}
        self.preemptors: dict[str, Pod] = {}
        self.placeholders: dict[str, Pod] = {}
        self._configuration = configuration
        self._namespace = namespace

    def copy(self) -> "WaitingPods":
        twin = WaitingPods(self._configuration, self._namespace)
        twin.refused, twin.preemptors = self.refused.copy(), self.preemptors.copy()
        twin.placeholders = self.placeholders.copy()
        return twin

    def pod_applied(self, pod: Pod) -> None:
        uid, spec = pod.metadata.uid, pod.spec
        self.pod_deleted(uid)
        if spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
            return
        scales = self._configuration.autoscaling.enabled
        if is_placeholder(pod):
            if scales and pod.metadata.namespace == self._namespace:
                self.placeholders[uid] = pod
            return
        reservation, refused = reservation_of(pod), self._is_refused(pod)
        if scales and refused and not pod.status.nominated_node_name:
            self.refused[uid] = pod
        may_preempt = refused and spec.preemption_policy != "Never"
        if reservation is not None:
            may_preempt = reservation.preemption
        if may_preempt and self._configuration.preemption.enabled:
            self.preemptors[uid] = pod

    def pod_deleted(self, uid: str) -> None:
        self.refused.pop(uid, None)
        self.preemptors.pop(uid, None)
        self.placeholders.pop(uid, None)

    def _is_refused(self, pod: Pod) -> bool:
        refused = any(
            each.type == POD_SCHEDULED
            and each.status == "False"
            and each.reason != SCHEDULING_GATED
            for each in pod.status.conditions
        )
        alone = not self._configuration.admission.gangs or gang_of(pod) is None
        return refused and alone and not pod.spec.scheduling_gates and requests_gpu(pod)


class GangMembers:
    """The pods of each gang.

    A succeeded pod counts as started until all pods of its gang have finished, and is stored until
    then. A failed pod is not stored.
    """

    def __init__(self) -> None:
        self._gangs: dict[GangName, dict[str, Pod]] = {}
        self._gang_of: dict[str, GangName] = {}

    def copy(self) -> "GangMembers":
        twin = GangMembers()
        twin._gangs = {name: pods.copy() for name, pods in self._gangs.items()}
        twin._gang_of = self._gang_of.copy()
        return twin

    def waiting(self) -> list[GangName]:
        """Return the gangs with unbound pods."""
        gangs = self._gangs.items()
        return [
            name
            for name, pods in gangs
            if not all(pod.spec.node_name or pod.finished for pod in pods.values())
        ]

    def pods(self, gang: GangName) -> Sequence[Pod]:
        return list(self._gangs[gang].values())

    def pod_applied(self, pod: Pod) -> None:
        uid, gang = pod.metadata.uid, gang_of(pod)
        has_ended = pod.finished and (pod.status.phase != "Succeeded" or gang not in self._gangs)
        if self._gang_of.get(uid) != gang or has_ended:
            self.pod_deleted(uid)
        if gang is None or has_ended:
            return
        self._gang_of[uid] = gang
        self._gangs.setdefault(gang, {})[uid] = pod
        self._forget_finished(gang)

    def pod_deleted(self, uid: str) -> None:
        gang = self._gang_of.pop(uid, None)
        if gang is not None:
            del self._gangs[gang][uid]
            self._forget_finished(gang)

    def _forget_finished(self, gang: GangName) -> None:
        if all(pod.finished for pod in self._gangs[gang].values()):
            for uid in self._gangs.pop(gang):
                del self._gang_of[uid]
