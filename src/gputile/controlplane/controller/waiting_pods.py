"""Keeps the pods that kube-scheduler found no node for, and placeholders."""

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import POD_SCHEDULED, Pod
from gputile.core.admission.gpu_requests import asks_for_gpu
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.node_type import is_placeholder
from gputile.core.devices.reservation import reservation_of


class WaitingPods:
    """Unbound pods by UID; ``namespace`` is where placeholders are: others that look like one are ignored.

    ``refused`` are GPU pods that kube-scheduler looked at and did not bind, without those that the controller plans as
    gangs. ``preemptors`` are those of them that may preempt, and pods with a reservation of GPUs that others leave.
    ``once_gated`` are the UIDs of pods that have been seen behind a scheduling gate.
    """

    def __init__(self, configuration: Configuration, namespace: str) -> None:
        self.refused: dict[str, Pod] = {}
        self.preemptors: dict[str, Pod] = {}
        self.placeholders: dict[str, Pod] = {}
        self.once_gated: set[str] = set()
        self._configuration = configuration
        self._namespace = namespace

    def copy(self) -> "WaitingPods":
        twin = WaitingPods(self._configuration, self._namespace)
        twin.refused, twin.preemptors = self.refused.copy(), self.preemptors.copy()
        twin.placeholders, twin.once_gated = self.placeholders.copy(), self.once_gated.copy()
        return twin

    def pod_applied(self, pod: Pod) -> None:
        uid, spec = pod.metadata.uid, pod.spec
        once_gated = uid in self.once_gated or bool(spec.scheduling_gates)
        self.pod_deleted(uid)
        if spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
            return
        scales = self._configuration.autoscaling.enabled
        if is_placeholder(pod):
            if scales and pod.metadata.namespace == self._namespace:
                self.placeholders[uid] = pod
            return
        reservation, refused = reservation_of(pod), self._is_refused(pod)
        if scales and once_gated:
            self.once_gated.add(uid)
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
        self.once_gated.discard(uid)

    def _is_refused(self, pod: Pod) -> bool:
        refused = any(each.type == POD_SCHEDULED and each.status == "False" for each in pod.status.conditions)
        alone = not self._configuration.admission.gangs or gang_of(pod) is None
        return refused and alone and not pod.spec.scheduling_gates and asks_for_gpu(pod)
