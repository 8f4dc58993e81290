"""Orders the pods that may be a reason for a node: those that nothing helps stand behind the others.

No I/O, no clock.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from gputile.api.core import Pod
from gputile.core.scheduling.gang_rules import in_line

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
