"""Keeps the pods that kube-scheduler found no node for, placeholders, and the pods of gangs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import POD_SCHEDULED, SCHEDULING_GATED, Pod
from gputile.core.admission.gpu_requests import asks_for_gpu
from gputile.core.devices.allocation import reservation_of
from gputile.core.devices.gang_membership import GangName, gang_of
from gputile.core.devices.node_type import is_placeholder


class WaitingPods:
    """Unbound pods by UID; placeholders are only recognised in ``namespace``.

    ``refused`` are GPU pods that kube-scheduler found unschedulable, without the pods of gangs if gangs are planned.
    ``preemptors`` are those of them that may preempt, and pods with a reservation for which victims leave.
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
            each.type == POD_SCHEDULED and each.status == "False" and each.reason != SCHEDULING_GATED
            for each in pod.status.conditions
        )
        alone = not self._configuration.admission.gangs or gang_of(pod) is None
        return refused and alone and not pod.spec.scheduling_gates and asks_for_gpu(pod)


@dataclass(slots=True)
class _Members:
    """The pods of one gang by UID: those that have not finished, those that have succeeded, and the unbound ones."""

    alive: dict[str, Pod] = field(default_factory=dict)
    succeeded: dict[str, Pod] = field(default_factory=dict)
    unbound: set[str] = field(default_factory=set)


class GangMembers:
    """Pods by gang.

    A pod that has succeeded counts as started while others of its gang have not finished, so it is kept until then. A
    pod that has failed is not kept.
    """

    def __init__(self) -> None:
        self._gangs: dict[GangName, _Members] = {}
        self._gang_of: dict[str, GangName] = {}
        self._waiting: dict[GangName, None] = {}

    def copy(self) -> "GangMembers":
        twin = GangMembers()
        twin._gangs = {
            name: _Members(each.alive.copy(), each.succeeded.copy(), each.unbound.copy())
            for name, each in self._gangs.items()
        }
        twin._gang_of, twin._waiting = self._gang_of.copy(), self._waiting.copy()
        return twin

    def __contains__(self, uid: str) -> bool:
        return uid in self._gang_of

    def __len__(self) -> int:
        return len(self._gang_of)

    def waiting(self) -> list[GangName]:
        return list(self._waiting)

    def pods(self, gang: GangName) -> Sequence[Pod]:
        members = self._gangs[gang]
        return [*members.alive.values(), *members.succeeded.values()]

    def pod_applied(self, pod: Pod) -> list[str]:
        """Apply the latest state of a pod; return the UIDs of the pods that are no longer kept."""
        uid, gang = pod.metadata.uid, gang_of(pod)
        known = self._gang_of.get(uid)
        gone: list[str] = []
        if known is not None and known != gang:
            gone += self.pod_deleted(uid)
        if gang is not None:
            gone += self._put(gang, uid, pod)
        return gone

    def pod_deleted(self, uid: str) -> list[str]:
        gang = self._gang_of.pop(uid, None)
        if gang is None:
            return []
        members = self._gangs[gang]
        for pods in (members.alive, members.succeeded):
            pods.pop(uid, None)
        members.unbound.discard(uid)
        return self._settle(gang, members)

    def _put(self, gang: GangName, uid: str, pod: Pod) -> list[str]:
        if pod.finished and (pod.status.phase != "Succeeded" or gang not in self._gangs):
            return self.pod_deleted(uid)
        members = self._gangs.setdefault(gang, _Members())
        self._gang_of[uid] = gang
        (members.succeeded if pod.finished else members.alive)[uid] = pod
        (members.alive if pod.finished else members.succeeded).pop(uid, None)
        if pod.spec.node_name or pod.finished:
            members.unbound.discard(uid)
        else:
            members.unbound.add(uid)
        return self._settle(gang, members)

    def _settle(self, gang: GangName, members: _Members) -> list[str]:
        if members.unbound:
            self._waiting[gang] = None
        else:
            self._waiting.pop(gang, None)
        if members.alive:
            return []
        del self._gangs[gang]
        for uid in members.succeeded:
            del self._gang_of[uid]
        return list(members.succeeded)
