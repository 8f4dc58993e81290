"""Refuses invalid values of the annotations that say how a pod shares a GPU (G4, M7)."""

from collections.abc import Mapping

from gputile.api.gpu_time import parse_active_threads, parse_weight
from gputile.api.well_known import MPS_THREADS_ANNOTATION, TIME_WEIGHT_ANNOTATION
from gputile.core.admission.refusal import AdmissionRefusal, AdmissionRule

_LONGEST = 20


def broken_shares(annotations: Mapping[str, str], most_weight: int) -> list[AdmissionRefusal]:
    """Return the annotations whose value is not valid; ``most_weight`` is what pods of the namespace may have."""
    found = []
    parsers = {
        TIME_WEIGHT_ANNOTATION: lambda text: parse_weight(text, most_weight),
        MPS_THREADS_ANNOTATION: parse_active_threads,
    }
    for key, parse in parsers.items():
        try:
            parse(annotations.get(key, "1")[:_LONGEST])
        except ValueError as error:
            rule = f"metadata.annotations[{key}]: {error}: write such a number, or remove the annotation"
            found.append(AdmissionRefusal(AdmissionRule.SHARE, rule))
    return found
