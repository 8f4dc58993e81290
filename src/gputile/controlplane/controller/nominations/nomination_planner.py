"""Plans one round of nominations: which to write, and which to clear. No I/O, no clock.

kube-scheduler tries the node in ``status.nominatedNodeName`` first, and asks the extender about that node alone, so a
pod with a good nomination costs it little, however large the cluster is. A nomination is a hint: filter and bind decide
as they always do, and nothing is booked for it. As long as it stands, kube-scheduler keeps the room from pods of no
higher priority. So each one ends.
"""

from dataclasses import dataclass, field
from typing import Final

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.controlplane.controller.cluster_state import version_of
from gputile.controlplane.controller.nominations.nominable_pods import (
    NominablePods,
    is_over,
    is_refused,
    may_be_nominated,
    served_schedulers,
)
from gputile.controlplane.controller.nominations.nominated_cluster import NominatedCluster
from gputile.controlplane.controller.nominations.nomination_limit import NominationLimit
from gputile.core.devices.reservation import own_nomination
from gputile.core.placement.steps import Steps
from gputile.kube.backoff import Backoff
from gputile.kube.watching.reflector import Applied, Deleted, Replaced, UnreadableObject, WatchEvent

_SECOND: Final = 10**9
# kube-scheduler binds hundreds of pods a second, and 500 are under way at most: a pod that is not bound by then waits
# for something that the nomination does not know, while others could use the room.
LASTS_NS: Final = 30 * _SECOND
REST_NS: Final = 60 * _SECOND  # so long a pod is not nominated again: others get their turn
# kube-scheduler may nominate the same node for a pod that it refuses, as others leave it: so long that takes to show.
REFUSED_NS: Final = 2 * _SECOND
MOST_A_ROUND: Final = 128  # so that the first is written before the last is planned, and news wait for no longer
_BACKOFF = Backoff(first=1.0, longest=30.0)


@dataclass(slots=True)
class _Nomination:
    """A nomination that was written, or is about to be; ``pod`` is the newest version that is known.

    ``seen`` is whether a version of the pod had it, ``expired`` whether it lasted for as long as it may. ``refused_ns``
    is when it was seen that kube-scheduler has refused the pod, 0 where it has not. The nomination may be cleared from
    ``again_ns`` on, after ``failures`` attempts. Both are Unix times in nanoseconds.
    """

    pod: Pod
    node: str
    since_ns: int
    seen: bool = False
    refused_ns: int = 0
    again_ns: int = 0
    failures: int = 0
    expired: bool = False


@dataclass(slots=True)
class _Rest:
    """A pod that is not nominated again until some time, Unix time in nanoseconds."""

    pod: Pod
    until_ns: int


@dataclass(slots=True)
class NominationRound:
    """What a round decided: pods with the node to nominate, and pods whose nomination is to be cleared.

    ``unfinished`` tells that more pods wait for which there is leave at once.
    """

    nominated: list[tuple[Pod, str]] = field(default_factory=list)
    cleared: list[Pod] = field(default_factory=list)
    unfinished: bool = False


class Nominations:
    """Decides round by round; the watches feed it, and so do the answers to its own writes.

    It clears gputile's own nominations only, which an annotation tells from others, whichever replica wrote them and
    however late they show.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.cluster = NominatedCluster(configuration)
        self._schedulers = served_schedulers(configuration)
        self._queue = NominablePods()
        self._own: dict[str, _Nomination] = {}
        self._rests: dict[str, _Rest] = {}
        self._limit = NominationLimit()
        self._leads = False
        self._now_ns = 0

    @property
    def under_way(self) -> int:
        """How many nominations of its own stand, or are about to be written."""
        return len(self._own)

    @property
    def has_work(self) -> bool:
        """Whether a round would nominate a node for some pod, as far as is known without looking."""
        return len(self._queue) > 0 and self.under_way < self._limit.most

    # -- what the watches tell

    def pod_event(self, event: WatchEvent[Pod]) -> Steps[None]:
        """Take an event of the pods' watch, in steps."""
        yield from self.cluster.pod_event(event)
        match event:
            case Applied(pod):
                self._take(pod)
            case Deleted(pod):
                self._forget(pod.metadata.uid)
            case Replaced(pods, unreadable):
                kept = {pod.metadata.uid for pod in pods} | {each.uid for each in unreadable}
                for uid in (self._own.keys() | self._rests.keys() | self._queue.uids) - kept:
                    self._forget(uid)
                    yield
                for pod in pods:
                    self._take(pod)
                    yield
            case UnreadableObject():
                pass

    def _take(self, pod: Pod) -> None:
        if not self.cluster.state.is_old(pod):
            self._put(pod)

    def _put(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if is_over(pod):
            if uid in self._own and pod.spec.node_name:
                self._limit.ended(expired=False)
            self._forget(uid)
            return
        self._queue.drop(uid)
        if (own := self._own.get(uid)) is not None:
            self._see(own, pod)
        elif self._leads and (node := own_nomination(pod)):
            late = self._rests.pop(uid, None) is not None  # a write of which no answer came
            self._own[uid] = _Nomination(pod, node, self._now_ns - (LASTS_NS if late else 0), seen=True)
        elif (rest := self._rests.get(uid)) is not None:
            rest.pod = pod
        elif not pod.status.nominated_node_name and may_be_nominated(pod, self._schedulers):
            self._queue.put(pod)

    def _see(self, own: _Nomination, pod: Pod) -> None:
        """Take a newer version of a pod that has a nomination."""
        newer, node = version_of(pod) > version_of(own.pod), pod.status.nominated_node_name
        own.pod = pod
        if node and node == own_nomination(pod):
            own.node, own.seen = node, True  # the replica that led before may have been the faster one
        elif node:  # preemption, or somebody else, has nominated it: it is theirs to clear
            self._own.pop(pod.metadata.uid)
        elif own.seen:
            self._end(own)
        elif newer:  # the write was for the version before, so it came too late
            self.again(pod)

    def _forget(self, uid: str) -> None:
        self._queue.drop(uid)
        self._own.pop(uid, None)
        self._rests.pop(uid, None)

    # -- rounds

    def steps(self, now_ns: int) -> Steps[NominationRound]:
        """Return, in steps, what to write now; nothing may change meanwhile. ``now_ns`` is Unix time in nanoseconds."""
        self._now_ns = now_ns
        self.cluster.tick(now_ns)
        if not self._leads:
            yield from self._take_over()
            self._leads = True
        result = NominationRound()
        yield from self._end_rests()
        yield from self._clear(result)
        while len(result.nominated) < MOST_A_ROUND and self.under_way < self._limit.most:
            pod = self._queue.take()
            if pod is None:
                break
            # A pod without a place is left to kube-scheduler: it finds out why.
            node = yield from self.cluster.choose(pod)
            if node:
                self._own[pod.metadata.uid] = _Nomination(pod, node, now_ns)
                result.nominated.append((pod, node))
            yield
        result.unfinished = self.has_work
        return result

    def stand_by(self) -> Steps[None]:
        """Note, in steps, that this replica does not act now: the nominations are those of another one."""
        self._leads = False
        while self._own:
            _, own = self._own.popitem()
            self.cluster.release(own.pod)
            self._put(own.pod)
            yield
        while self._rests:
            _, rest = self._rests.popitem()
            self._put(rest.pod)
            yield

    def _take_over(self) -> Steps[None]:
        """Look after the nominations of the replica that led before."""
        for uid, pod in list(self.cluster.nominated.items()):
            if uid not in self._own and (node := own_nomination(pod)):
                self._own[uid] = _Nomination(pod, node, self._now_ns, seen=True)
            yield

    def _end_rests(self) -> Steps[None]:
        """Let pods have their turn again that have rested; also where the clock was set back."""
        for uid, rest in list(self._rests.items()):
            if not 0 < rest.until_ns - self._now_ns <= REST_NS:
                del self._rests[uid]
                self._put(rest.pod)
            yield

    def _clear(self, result: NominationRound) -> Steps[None]:
        """Find the nominations that are to end."""
        for own in list(self._own.values()):
            yield
            age_ns = self._now_ns - own.since_ns
            if age_ns < 0:  # the clock was set back
                own.since_ns = self._now_ns
            refused = self._is_refused(own)
            if refused and self.cluster.is_left_for(own.pod, own.node):
                refused = False  # kube-scheduler may have chosen the same node for its preemption
            own.expired = age_ns >= LASTS_NS
            lasts = not own.expired and self.cluster.is_open(own.node) and not refused
            if lasts or 0 < own.again_ns - self._now_ns <= LASTS_NS:
                continue
            if own.pod.status.nominated_node_name == own.node:
                result.cleared.append(own.pod)
            elif own.expired:  # its write was lost
                self._end(own)

    def _is_refused(self, own: _Nomination) -> bool:
        """Return whether kube-scheduler has refused a pod, some time ago."""
        if not is_refused(own.pod):
            own.refused_ns = 0
        elif not 0 < own.refused_ns <= self._now_ns:
            own.refused_ns = self._now_ns
        return own.refused_ns > 0 and self._now_ns - own.refused_ns >= REFUSED_NS

    # -- what came of the writes

    def written(self, pod: Pod) -> None:
        """Take the API server's answer to a write, unless the watch has told more already."""
        if not self.cluster.state.is_news(pod):
            return
        self.cluster.put(pod)
        self._put(pod)

    def refused(self, pod: Pod) -> None:
        """Note that the API server refuses a nomination: for a while none is written for the pod."""
        own = self._own.get(pod.metadata.uid)
        if own is not None:
            self._end(own)

    def again(self, pod: Pod) -> None:
        """Have a pod wait again for which nothing was written."""
        own = self._own.pop(pod.metadata.uid, None)
        if own is not None:
            self.cluster.release(own.pod)
            self._put(own.pod)

    def not_cleared(self, pod: Pod) -> None:
        """Note that a nomination may still stand; a later round tries again."""
        own = self._own.get(pod.metadata.uid)
        if own is not None:
            own.again_ns = self._now_ns + int(_BACKOFF.delay(own.failures) * _SECOND)
            own.failures += 1

    def gone(self, pod: Pod) -> None:
        """Note that there is no such pod any more."""
        self.cluster.forget(pod)
        self._forget(pod.metadata.uid)

    def _end(self, own: _Nomination) -> None:
        """Have a pod rest whose nomination has ended."""
        uid = own.pod.metadata.uid
        self._own.pop(uid, None)
        if own.expired:
            self._limit.ended(expired=True)
        self.cluster.release(own.pod)
        self._rests[uid] = _Rest(own.pod, self._now_ns + REST_NS)
