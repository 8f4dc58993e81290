"""Reads pods back whose Bindings nobody has confirmed, and tells the ledger what was found."""

from dataclasses import dataclass

from gputile.api.core import Pod
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.events import PodDeleted, PodRead
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import PlacementEngine


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


def overdue(engine: PlacementEngine, now: float, age: float) -> list[PodReading]:
    """Return readings, begun now, of the pods that were assumed ``age`` seconds ago and that no watch has confirmed.

    ``now`` is a time of the monotonic clock in seconds.
    """
    ledger = engine.ledger
    return [PodReading(ledger, each.namespace, each.name, each.uid, each) for each in ledger.overdue(now, age)]
