"""Limits how long a gang is passed, and how long GPUs are kept for it in vain.

A gang that does not fit lets others pass for ``gangs.patienceSeconds``; then what becomes free is kept for it. A gang
keeps GPUs in vain while it has some and cannot start: because there are too few, or because kube-scheduler has not
begun its plan in time. After ``gangs.keepSeconds`` of that it rests for as long again, and waits anew. Reservations
tell since when GPUs are kept, so a new leader goes on with that time.
"""

from collections.abc import Collection
from dataclasses import dataclass

from gputile.api.config.v1alpha1 import GangConfiguration
from gputile.core.devices.gang_membership import GangName

_SECOND = 10**9


@dataclass(slots=True)
class _KeptInVain:
    """Since when GPUs are kept for a gang in vain, and when that ended last for having lasted too long."""

    since_ns: int | None = None
    ended_ns: int = 0


class GangPatience:
    """Of gangs that have unbound pods; times are Unix time in nanoseconds."""

    def __init__(self, settings: GangConfiguration) -> None:
        self._patience_ns = settings.patience_seconds * _SECOND
        self._keep_ns = settings.keep_seconds * _SECOND
        self._rest_ns = max(self._patience_ns, self._keep_ns)
        self._accounts: dict[GangName, _KeptInVain] = {}
        self._noted: set[GangName] = set()
        self._now_ns = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def begin(self, gangs: Collection[GangName], now_ns: int) -> None:
        """Begin a round: forget gangs that are gone, and end what has lasted for too long."""
        self._now_ns = now_ns
        for name in self._accounts.keys() - gangs:
            del self._accounts[name]
        for name, account in self._accounts.items():
            if name not in self._noted:
                account.since_ns = None
            elif account.since_ns is not None and now_ns - account.since_ns >= self._keep_ns:
                account.since_ns, account.ended_ns = None, now_ns
        self._noted = set()

    def rests(self, gang: GangName) -> bool:
        """Return whether no GPUs are kept for a gang now; a clock that was set back ends its rest."""
        account = self._accounts.get(gang)
        return account is not None and 0 < account.ended_ns <= self._now_ns < account.ended_ns + self._rest_ns

    def has_waited(self, gang: GangName, complete_at: float) -> bool:
        """Return whether a gang that was complete at ``complete_at``, in seconds, has let others pass long enough."""
        return not self.rests(gang) and self._now_ns - complete_at * _SECOND > self._patience_ns

    def kept_in_vain(self, gang: GangName, since_ns: int) -> None:
        """Note, in each round, that GPUs are kept for a gang that does not start; ``since_ns`` is 0 if unknown."""
        account = self._accounts.setdefault(gang, _KeptInVain())
        known = [each for each in (account.since_ns, since_ns) if each and each > account.ended_ns]
        account.since_ns = min([self._now_ns, *known])
        self._noted.add(gang)
