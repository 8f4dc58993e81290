"""Keeps pods that kube-scheduler found no node for, and the order in which they get node requests."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod, PodSpec
from gputile.controlplane.event_loop import taking_turns
from gputile.core.admission.gpu_requests import asks_for_gpu
from gputile.core.devices.gang_membership import gang_of
from gputile.core.devices.node_type import is_placeholder
from gputile.core.scheduling.gang_rules import in_line
from gputile.kube.objects import Applied, Deleted, Replaced, UnreadableObject, WatchEvent


class WaitingPods:
    """Fed by the watch of pods. ``namespace`` is where placeholders are; others that look like one do not count.

    ``waiting`` are GPU pods by UID that kube-scheduler looked at and did not bind, without those that the controller
    plans as gangs. ``placeholders`` are by UID as well. ``once_gated`` are the UIDs of pods that are not
    bound and have been seen behind a scheduling gate.
    """

    def __init__(self, configuration: Configuration, namespace: str) -> None:
        self.waiting: dict[str, Pod] = {}
        self.placeholders: dict[str, Pod] = {}
        self.once_gated: set[str] = set()
        self._configuration = configuration
        self._namespace = namespace
        self._specs: dict[bytes, PodSpec] = {}

    def copy(self) -> "WaitingPods":
        """Return a private copy to plan on; nothing is told to it."""
        twin = WaitingPods(self._configuration, self._namespace)
        twin.waiting, twin.placeholders = self.waiting.copy(), self.placeholders.copy()
        twin.once_gated = self.once_gated.copy()
        return twin

    async def pod_event(self, event: WatchEvent[Pod]) -> None:
        match event:
            case Applied(pod):
                self._put(pod)
            case Deleted(pod):
                self._drop(pod.metadata.uid)
                self.once_gated.discard(pod.metadata.uid)
            case Replaced(pods, unreadable):
                kept = {pod.metadata.uid for pod in pods} | {each.uid for each in unreadable}
                for uid in (self.waiting.keys() | self.placeholders.keys()) - kept:
                    self._drop(uid)
                self.once_gated &= kept
                async for pod in taking_turns(pods):
                    self._put(pod)
            case UnreadableObject():
                pass

    def _put(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._drop(uid)
        if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
            self.once_gated.discard(uid)
            return
        if pod.spec.scheduling_gates:
            self.once_gated.add(uid)
        if is_placeholder(pod):
            if pod.metadata.namespace == self._namespace:
                self.placeholders[uid] = pod
        elif self._is_waiting(pod):
            # Pods of one workload share one spec: what is found out about it counts for all of them.
            spec = self._specs.setdefault(msgspec.json.encode(pod.spec), pod.spec)
            self.waiting[uid] = msgspec.structs.replace(pod, spec=spec)

    def _is_waiting(self, pod: Pod) -> bool:
        refused = any(condition.status == "False" for condition in pod.status.conditions)
        alone = not self._configuration.admission.gangs or gang_of(pod) is None
        preempts = bool(pod.status.nominated_node_name)
        return refused and alone and not preempts and not pod.spec.scheduling_gates and asks_for_gpu(pod)

    def _drop(self, uid: str) -> None:
        self.placeholders.pop(uid, None)
        self.waiting.pop(uid, None)
        if len(self._specs) > 2 * len(self.waiting):
            in_use = {id(pod.spec) for pod in self.waiting.values()}
            self._specs = {text: spec for text, spec in self._specs.items() if id(spec) in in_use}


Unit = Sequence[Pod]  # pods that are looked at together: a single one, or those of a gang


class WaitingLine:
    """First come the pods that a node is asked for, then those not looked at yet, then those that no node helps.

    Of these, those come first whose last look is longest ago. Else it goes by priority, then the namespaces take turns,
    and in each it goes by age.
    """

    def __init__(self) -> None:
        self._helped: set[str] = set()
        self._refused: dict[str, int] = {}  # UID -> the number of the look that found no node for it last
        self._looks = 0

    def ordered(self, units: Iterable[Unit]) -> list[Unit]:
        """Return the units in the order in which they are to be looked at."""
        turns = Counter[tuple[str, int]]()
        keyed = []
        for unit in sorted(units, key=lambda unit: in_line(unit[0])):
            first = unit[0]
            priority = first.spec.priority or 0
            turn = turns[first.metadata.namespace, priority]
            turns[first.metadata.namespace, priority] += 1
            keyed.append(((*self._standing(unit), -priority, turn), unit))
        return [unit for _, unit in sorted(keyed, key=lambda each: each[0])]

    def _standing(self, unit: Unit) -> tuple[int, int]:
        uids = [pod.metadata.uid for pod in unit]
        if any(uid in self._helped for uid in uids):
            return 0, 0
        looks = [self._refused[uid] for uid in uids if uid in self._refused]
        return (2, max(looks)) if looks else (1, 0)

    def note(self, helped: Collection[str], refused: Collection[str], waiting: Collection[str]) -> None:
        """Note how a look ended, by the pods' UIDs; ``waiting`` are all that still wait."""
        self._looks += 1
        self._helped = set(helped)
        self._refused |= dict.fromkeys(refused, self._looks)
        self._refused = {uid: look for uid, look in self._refused.items() if uid in waiting and uid not in helped}


def first_pods(units: Iterable[Unit], most: int) -> list[Pod]:
    """Return the pods of the first units, at most ``most``: whole units, or a part of one that is alone larger."""
    pods: list[Pod] = []
    for unit in units:
        if pods and len(pods) + len(unit) > most:
            break
        pods += unit
    return pods[:most]
