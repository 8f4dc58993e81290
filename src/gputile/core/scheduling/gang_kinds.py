"""Groups the pods of a gang that may change places.

They ask for the same, and all rules about labels treat them alike.

Jobs and StatefulSets number their pods in labels; such a label tells pods apart only where a selector looks at it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from gputile.api.affinity import LabelSelector
from gputile.api.core import Pod
from gputile.core.devices.request import Request
from gputile.core.kube_predicates.inter_pod import affinity_terms, anti_affinity_terms, hard_spread
from gputile.core.kube_predicates.node_fit import selects

_MOST_SELECTORS = 64  # beyond these, pods whose labels differ are told apart


@dataclass(frozen=True, slots=True)
class GangCandidate:
    """A pod to be placed. ``request`` is None for one that asks for no GPU."""

    pod: Pod
    request: Request | None


@dataclass(frozen=True, slots=True)
class Kinds:
    """``number`` and ``spec`` have the number of each pod's kind and of its spec; ``asking`` has a pod of each kind.

    Pods of one spec ask for the same; those of one kind may change places too.
    """

    number: tuple[int, ...]
    spec: tuple[int, ...]
    asking: tuple[GangCandidate, ...]


def kinds_of(members: Sequence[GangCandidate], repelling: Iterable[Pod]) -> Kinds:
    """Sort out the pods of a gang; ``repelling`` are the placed pods that have anti-affinity terms."""
    rules = _Rules()
    for pod in (*(member.pod for member in members), *repelling):
        rules.add(pod)
    specs: dict[object, int] = {}
    first_of_spec: list[Pod] = []
    kinds: dict[object, int] = {}
    asking: list[GangCandidate] = []
    number, spec = [], []
    for member in members:
        pod = member.pod
        asked = msgspec.json.encode(msgspec.structs.replace(pod.spec, scheduling_gates=()))
        alike = (member.request, pod.metadata.namespace, asked)
        if alike not in specs:
            specs[alike] = len(specs)
            first_of_spec.append(pod)
        spec.append(specs[alike])
        kind = (spec[-1], rules.seen(pod))
        if kind not in kinds:
            kinds[kind] = len(kinds)
            shared = msgspec.structs.replace(pod, spec=first_of_spec[spec[-1]].spec)
            asking.append(GangCandidate(shared, member.request))
        number.append(kinds[kind])
    return Kinds(tuple(number), tuple(spec), tuple(asking))


class _Rules:
    """All rules about labels that concern the pods of a gang: their own, and those of pods that keep others away."""

    def __init__(self) -> None:
        self._selectors: dict[bytes, LabelSelector] = {}
        self._keys: set[str] = set()

    def add(self, pod: Pod) -> None:
        for selector, keys in _selectors(pod):
            self._keys.update(keys)
            if selector is not None and len(self._selectors) <= _MOST_SELECTORS:
                self._selectors.setdefault(msgspec.json.encode(selector), selector)

    def seen(self, pod: Pod) -> object:
        """Return what the rules see of a pod's labels."""
        labels = pod.metadata.labels
        if len(self._selectors) > _MOST_SELECTORS:
            return frozenset(labels.items())
        values = frozenset((key, labels[key]) for key in self._keys if key in labels)
        return tuple(selects(selector, labels) for selector in self._selectors.values()), values


def _selectors(pod: Pod) -> list[tuple[LabelSelector | None, tuple[str, ...]]]:
    """Return the selectors of a pod's rules, each with the keys whose own values it adds."""
    found = [
        (term.label_selector, term.match_label_keys + term.mismatch_label_keys)
        for term in (*affinity_terms(pod), *anti_affinity_terms(pod))
    ]
    return found + [(each.label_selector, each.match_label_keys) for each in hard_spread(pod)]
