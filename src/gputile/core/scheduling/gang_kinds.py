"""Groups the pods of a gang that may change places.

They ask for the same, and all rules about labels treat them alike. Jobs and StatefulSets number their pods in labels;
such a label tells pods apart only where a selector names it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from gputile.api.core import Pod
from gputile.core.devices.request import Request
from gputile.core.kube_predicates.inter_pod import affinity_terms, anti_affinity_terms, hard_spread

_MOST_KEYS = 64  # beyond these, pods whose labels differ are told apart


@dataclass(frozen=True, slots=True)
class GangCandidate:
    """A pod to be placed. ``request`` is None for one that asks for no GPU."""

    pod: Pod
    request: Request | None


@dataclass(frozen=True, slots=True)
class Kinds:
    """``number`` has the number of each pod's kind, ``asking`` a pod of each kind."""

    number: tuple[int, ...]
    asking: tuple[GangCandidate, ...]


def kinds_of(members: Sequence[GangCandidate], repelling: Iterable[Pod]) -> Kinds:
    """Sort out the pods of a gang; ``repelling`` are the placed pods that have anti-affinity terms."""
    keys = {key for pod in (*(member.pod for member in members), *repelling) for key in _label_keys(pod)}
    kinds: dict[object, int] = {}
    asking: list[GangCandidate] = []
    number = []
    for member in members:
        meta = member.pod.metadata
        labels = meta.labels.items() if len(keys) > _MOST_KEYS else ((key, meta.labels.get(key)) for key in keys)
        asked = msgspec.json.encode(msgspec.structs.replace(member.pod.spec, scheduling_gates=()))
        kind = member.request, meta.namespace, asked, frozenset(labels)
        if kind not in kinds:
            kinds[kind] = len(kinds)
            asking.append(member)
        number.append(kinds[kind])
    return Kinds(tuple(number), tuple(asking))


def _label_keys(pod: Pod) -> Iterator[str]:
    """Yield the keys of the labels that a pod's rules about others look at."""
    terms, spread = (*affinity_terms(pod), *anti_affinity_terms(pod)), hard_spread(pod)
    for term in terms:
        yield from (*term.match_label_keys, *term.mismatch_label_keys)
    for constraint in spread:
        yield from constraint.match_label_keys
    for selector in (*(term.label_selector for term in terms), *(each.label_selector for each in spread)):
        if selector is not None:
            yield from selector.match_labels
            yield from (requirement.key for requirement in selector.match_expressions)
