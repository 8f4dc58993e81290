"""Gives the pods that may preempt others their turns; none waits for those that find nothing.

The most important pod comes first, and of equal ones that of the namespace whose last turn is longest ago. Every fourth
turn goes by namespace and time alone, whatever the priority.
"""

import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from gputile.api.core import ObjectMeta, Pod, PodSpec

DELAY_S = 1.0  # kube-scheduler's own preemption comes first: it asks right after the refusal
REST_S = 10.0  # between two searches for one pod
_FAIR_TURN = 4  # of so many turns one goes by namespace and time alone
MOST_PODS = 1024
MOST_NAMES = 1000  # candidate nodes that are remembered for a pod


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A refused pod and the nodes that lack GPUs only. Times are monotonic, in seconds.

    Of the ``pod`` its key, its UID and its priority are kept: whole pods may have 250 kB each.
    ``by_scheduler`` tells that kube-scheduler was given victims, and is about to evict them. ``nominated_since`` is
    when it was given some last; before that, when it refused the pod first.
    """

    pod: Pod
    names: tuple[str, ...]
    due: float
    nominated_since: float
    by_scheduler: bool = False


class PreemptionQueue:
    """At most ``MOST_PODS`` pods. Of more one is forgotten of the namespace with the most, until it is refused again.

    That is one that has had its turn, else one of those with the lowest priority.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, RefusedPod] = {}
        self._in_namespace: Counter[str] = Counter()
        self._rests: OrderedDict[str, float] = OrderedDict()  # UID -> until when no search is made
        # Whether a turn went by namespace and time alone, and the namespace -> the number of its last one
        self._last_turns: OrderedDict[tuple[bool, str], int] = OrderedDict()
        self._turns = 0
        self._first_name = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def refused(self, pod: Pod, names: Iterable[str], now: float, *, by_scheduler: bool = False) -> None:
        """Note that a pod was refused on ``names`` for want of GPUs, or that kube-scheduler preempts for it there."""
        uid = pod.metadata.uid
        known = self._removed(uid)
        # Who has searched in vain rests. The victims of kube-scheduler may be gone at once, and others may come.
        due = now + DELAY_S if by_scheduler else max(now + DELAY_S, self._rests.get(uid, now))
        nominated_since = now
        if known is not None:
            due = min(due, known.due)
            nominated_since = now if by_scheduler else known.nominated_since
        self._put(RefusedPod(_slim(pod), self._some(list(names)), due, nominated_since, by_scheduler), now)

    def later(self, waiting: RefusedPod, due: float) -> None:
        """Look at a pod again at ``due``, unless it has been refused anew."""
        if waiting.pod.metadata.uid not in self._waiting:
            self._put(replace(waiting, due=due), waiting.due)

    def rest(self, uid: str, until: float) -> None:
        """Search nothing for a pod until then, whether or not it has been refused anew since it was taken."""
        waiting = self._waiting.get(uid)
        if waiting is not None and not waiting.by_scheduler:
            self._waiting[uid] = replace(waiting, due=max(waiting.due, until))
        self._rests.pop(uid, None)
        self._rests[uid] = until
        while len(self._rests) > MOST_PODS:
            self._rests.popitem(last=False)

    def take(self, now: float) -> RefusedPod | None:
        due = [waiting for waiting in self._waiting.values() if waiting.due <= now]
        if not due:
            return None
        self._turns += 1
        fair = self._turns % _FAIR_TURN == 0

        def order(waiting: RefusedPod) -> tuple[int, int, float]:
            priority = 0 if fair else waiting.pod.spec.priority or 0
            return -priority, self._last_turns.get((fair, waiting.pod.metadata.namespace), 0), waiting.due

        found = min(due, key=order)
        key = fair, found.pod.metadata.namespace
        self._last_turns[key] = self._turns
        self._last_turns.move_to_end(key)
        while len(self._last_turns) > 2 * MOST_PODS:
            self._last_turns.popitem(last=False)
        return self._removed(found.pod.metadata.uid)

    def _removed(self, uid: str) -> RefusedPod | None:
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            namespace = waiting.pod.metadata.namespace
            self._in_namespace[namespace] -= 1
            if not self._in_namespace[namespace]:
                del self._in_namespace[namespace]
        return waiting

    def _put(self, waiting: RefusedPod, now: float) -> None:
        self._waiting[waiting.pod.metadata.uid] = waiting
        self._in_namespace[waiting.pod.metadata.namespace] += 1
        while len(self._waiting) > MOST_PODS:
            ((namespace, _),) = self._in_namespace.most_common(1)
            crowd = (each for each in self._waiting.values() if each.pod.metadata.namespace == namespace)
            spare = max(crowd, key=lambda each: (each.due > now + DELAY_S, -(each.pod.spec.priority or 0), each.due))
            self._removed(spare.pod.metadata.uid)

    def _some(self, names: list[str]) -> tuple[str, ...]:
        """Return as many names as are remembered; each time others, where there are more."""
        if len(names) <= MOST_NAMES:
            return tuple(map(sys.intern, names))
        begin = self._first_name % len(names)
        self._first_name += MOST_NAMES
        return tuple(map(sys.intern, islice((*names[begin:], *names[:begin]), MOST_NAMES)))


def _slim(pod: Pod) -> Pod:
    meta = ObjectMeta(namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid)
    return Pod(metadata=meta, spec=PodSpec(priority=pod.spec.priority))
