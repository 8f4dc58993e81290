"""Orders the pods that may preempt others: by priority, then by waiting time."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from gputile.api.core import Pod

DELAY_S = 1.0  # kube-scheduler's own preemption comes first: it asks right after the refusal
REST_S = 10.0  # between two searches for one pod
MOST_PODS = 1024
MOST_NAMES = 1000  # candidate nodes that are remembered for a pod


@dataclass(frozen=True, slots=True)
class RefusedPod:
    """A refused pod and the nodes that lack GPUs only. Times are monotonic, in seconds.

    ``by_scheduler`` tells that kube-scheduler was given victims, and is about to evict them. ``nominated_since`` is
    when it was given some last; before that, when it refused the pod first.
    """

    pod: Pod
    names: tuple[str, ...]
    since: float
    due: float
    nominated_since: float
    by_scheduler: bool = False


class PreemptionQueue:
    """At most ``MOST_PODS`` pods; of more, those that came last."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, RefusedPod] = OrderedDict()
        self._rests: OrderedDict[str, float] = OrderedDict()  # UID -> until when no search is made
        self._turn = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def refused(self, pod: Pod, names: Iterable[str], now: float, *, by_scheduler: bool = False) -> None:
        """Note that a pod was refused on ``names`` for want of GPUs, or that kube-scheduler preempts for it there."""
        uid = pod.metadata.uid
        known = self._waiting.pop(uid, None)
        # Who has searched in vain rests. The victims of kube-scheduler may be gone at once, and others may come.
        due = now + DELAY_S if by_scheduler else max(now + DELAY_S, self._rests.get(uid, now))
        since = nominated_since = now
        if known is not None:
            due, since = min(due, known.due), known.since
            nominated_since = now if by_scheduler else known.nominated_since
        self._put(RefusedPod(pod, self._some(list(names)), since, due, nominated_since, by_scheduler))

    def later(self, waiting: RefusedPod, due: float) -> None:
        """Look at a pod again at ``due``, unless it has been refused anew."""
        uid = waiting.pod.metadata.uid
        if uid not in self._waiting:
            self._put(replace(waiting, due=due))

    def rest(self, uid: str, until: float) -> None:
        """Search nothing for a pod until then."""
        self._rests.pop(uid, None)
        self._rests[uid] = until
        while len(self._rests) > MOST_PODS:
            self._rests.popitem(last=False)

    def due(self, now: float) -> list[RefusedPod]:
        """Take out the pods whose time has come, the most important first."""
        found = [waiting for waiting in self._waiting.values() if waiting.due <= now]
        for waiting in found:
            del self._waiting[waiting.pod.metadata.uid]
        return sorted(found, key=lambda each: (-(each.pod.spec.priority or 0), each.since))

    def _put(self, waiting: RefusedPod) -> None:
        self._waiting[waiting.pod.metadata.uid] = waiting
        while len(self._waiting) > MOST_PODS:
            self._waiting.popitem(last=False)

    def _some(self, names: list[str]) -> tuple[str, ...]:
        """Return as many names as are remembered; each time others, where there are more."""
        if len(names) <= MOST_NAMES:
            return tuple(names)
        begin = self._turn % len(names)
        self._turn += MOST_NAMES
        return tuple(islice((*names[begin:], *names[:begin]), MOST_NAMES))
