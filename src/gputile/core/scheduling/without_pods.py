"""Looks at a cluster as if pods had left it, and brings them back."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.booking import Booking
from gputile.core.placement.steps import Steps, at_once
from gputile.core.scheduling.placement_engine import PlacementEngine


@dataclass(frozen=True, slots=True)
class VictimSearchInput:
    """The cluster that places are looked for in. ``pods`` are its bound pods by UID.

    ``empty`` tells which nodes a pod could go to if no pod were there. No place is on a node whose name is in
    ``closed``.
    """

    engine: PlacementEngine
    predicates: Predicates
    empty: Predicates
    pods: Mapping[str, Pod]
    closed: Collection[str] = ()


class WithoutPods:
    """Pods that are looked at as if they were gone, or had no reservation."""

    def __init__(self, cluster: VictimSearchInput) -> None:
        self._ledger, self._predicates, self._pods = cluster.engine.ledger, cluster.predicates, cluster.pods
        self._reservations: list[tuple[Pod, Booking | None, str]] = []
        self._gone: dict[str, tuple[Pod, Booking, str]] = {}

    def claim(self, pod: Pod) -> None:
        """Look at a pod that waits as if nothing were kept for it."""
        uid = pod.metadata.uid
        self._reservations.append((pod, self._ledger.set_aside(uid), self._predicates.remove(uid)))

    def take(self, uid: str) -> None:
        pod, booking = self._pods.get(uid), self._ledger.booking(uid)
        if pod is None or booking is None or booking.reserved or uid in self._gone:
            return
        self._ledger.take_out(uid)
        self._gone[uid] = (pod, booking, self._predicates.remove(uid))

    def leave(self, uid: str) -> None:
        taken = self._gone.pop(uid, None)
        if taken is not None:
            pod, booking, node = taken
            self._ledger.put_back(booking)
            if node:
                self._predicates.place(pod, node)

    def bring_back_in_steps(self) -> Steps[None]:
        for uid in list(self._gone):
            self.leave(uid)
            yield
        while self._reservations:
            pod, reservation, node = self._reservations.pop()
            if reservation is not None:
                self._ledger.bring_back(reservation)
            if node:
                self._predicates.place(pod, node)
            yield

    def bring_back(self) -> None:
        at_once(self.bring_back_in_steps())


def takes(predicates: Predicates, pod: Pod, node: str) -> Steps[bool]:
    """Return, in steps, whether a node has room for a pod beside all others, whether it is counted there or not."""
    counted = predicates.remove(pod.metadata.uid)
    try:
        yield from predicates.prepare(pod)
        return (yield from predicates.reason(pod, node)) is None
    finally:
        if counted:
            predicates.place(pod, counted)
