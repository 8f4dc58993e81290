"""Tells the ledger what became of a Binding: it was executed or not, or its pod was read to find out."""

from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.events import Confirmed, Forgotten, PodDeleted, PodRead
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_binding import PodBinding


def confirm(engine: PlacementEngine, pod: Pod, binding: PodBinding) -> None:
    """Note that a Binding was executed.

    The watch confirms a Binding, too; the other pods of a gang's plan need not wait for that.
    """
    if binding.plan:
        engine.ledger.apply(Confirmed(pod.metadata.uid))


def take_back(engine: PlacementEngine, pod: Pod, *, gone: bool = False) -> None:
    """Note that the Binding of a pod was certainly not executed; with ``gone`` the pod does not exist any more.

    What was booked for it is free again; where a place was kept for the pod, it is kept as before.
    """
    uid = pod.metadata.uid
    engine.ledger.apply(PodDeleted(uid) if gone else Forgotten(uid))


@dataclass(frozen=True, slots=True)
class PodReading:
    """A reading of a pod from the API server, which ends with ``apply``.

    ``before`` is what the ledger had of the pod when the reading began: what the watch says of the pod from then on
    may be newer than what is read, and stands.
    """

    ledger: Ledger
    namespace: str
    name: str
    uid: str
    before: Booking | None

    @property
    def key(self) -> str:
        """``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.name}"

    def apply(self, found: Pod | None, read_at: float) -> None:
        """Apply what was read to the ledger. ``read_at`` is a time of the monotonic clock in seconds."""
        if found is None or found.metadata.uid != self.uid:
            self.ledger.apply(PodDeleted(self.uid))
        elif self.before is not None and self.ledger.booking(self.uid) is self.before:
            self.ledger.apply(PodRead(found, read_at))


def begin_reading(engine: PlacementEngine, pod: Pod) -> PodReading:
    """Return a reading of a pod that begins now."""
    meta, ledger = pod.metadata, engine.ledger
    return PodReading(ledger, meta.namespace, meta.name, meta.uid, ledger.booking(meta.uid))


def overdue(engine: PlacementEngine, now: float, age: float) -> list[PodReading]:
    """Return readings, begun now, of the pods that were assumed ``age`` seconds ago and that no watch has confirmed.

    ``now`` is a time of the monotonic clock in seconds.
    """
    ledger = engine.ledger
    return [PodReading(ledger, each.namespace, each.name, each.uid, each) for each in ledger.overdue(now, age)]
