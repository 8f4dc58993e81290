"""The annotations by which a pod says how it shares a card: what is not valid is refused, not ignored (G4, M7)."""

from collections.abc import Callable, Mapping
from typing import Final

from gputile.admission.refusal import Refusal, Rule
from gputile.api.gputime import parse_active_threads, parse_weight
from gputile.api.wellknown import MPS_THREADS_ANNOTATION, TIME_WEIGHT_ANNOTATION

_PARSERS: Final[Mapping[str, Callable[[str], int]]] = {
    TIME_WEIGHT_ANNOTATION: parse_weight,
    MPS_THREADS_ANNOTATION: parse_active_threads,
}
_LONGEST = 20


def broken_shares(annotations: Mapping[str, str]) -> list[Refusal]:
    """Return the annotations whose value is not valid."""
    found = []
    for key, parse in _PARSERS.items():
        try:
            parse(annotations.get(key, "1")[:_LONGEST])
        except ValueError as error:
            rule = f"metadata.annotations[{key}]: {error}: write such a number, or remove the annotation"
            found.append(Refusal(Rule.SHARE, rule))
    return found
