"""Refuses changes of the allocation annotations, which only gputile may write (B2, B9)."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gputile.api.well_known import (
    ACK_ALLOCATION,
    ALLOCATION_ANNOTATION,
    GPU_COUNT_LABEL,
    GPUSHARE_PREFIX,
    MEMORY_UNIT_ANNOTATION,
    MIRROR_ANNOTATION,
    RESERVATION_ANNOTATION,
)
from gputile.core.admission.refusal import MOST_FOUND, AdmissionRefusal, AdmissionRule

PROTECTED: Final = (ALLOCATION_ANNOTATION, ACK_ALLOCATION, RESERVATION_ANNOTATION)
PROTECTED_PREFIX: Final = GPUSHARE_PREFIX
# Stamped when a pod is created; to be changed by a Binding and by corrections only.
STAMPED: Final = MEMORY_UNIT_ANNOTATION


def forged_on_create(annotations: Mapping[str, str], user: str, trusted: Collection[str]) -> list[AdmissionRefusal]:
    """Return a refusal for each allocation annotation that a new pod carries."""
    return [] if user in trusted else _refused(user, filter(_protected, annotations))


def forged_on_binding(annotations: Mapping[str, str], user: str, trusted: Collection[str]) -> list[AdmissionRefusal]:
    """Return a refusal for each annotation by which a Binding would write the ledger, or make a pod a static one.

    On every other write the API server itself keeps the annotation of static pods as it is.
    """
    if user in trusted:
        return []
    refused = _refused(user, (key for key in annotations if _protected(key) or key == STAMPED))
    if MIRROR_ANNOTATION in annotations:
        rule = f"metadata.annotations[{MIRROR_ANNOTATION}]: only a kubelet says which pods are static: leave it out"
        refused.append(AdmissionRefusal(AdmissionRule.FORGED, rule))
    return refused


def forged_on_update(
    old: Mapping[str, str], new: Mapping[str, str], user: str, trusted: Collection[str]
) -> list[AdmissionRefusal]:
    """Return a refusal for each allocation annotation that a change adds, alters or removes."""
    if user in trusted:
        return []
    return _refused(user, (key for key in _changed(old, new) if _protected(key) or key == STAMPED))


def count_changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[AdmissionRefusal]:
    """Return the refusal of a change to the number of GPUs that a pod has asked for (M10), if it is one."""
    if old.get(GPU_COUNT_LABEL) == new.get(GPU_COUNT_LABEL):
        return []
    rule = f"metadata.labels[{GPU_COUNT_LABEL}]: the number of GPUs is fixed when a pod is created: create it anew"
    return [AdmissionRefusal(AdmissionRule.COUNT_CHANGED, rule)]


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    return {key for key, _ in old.items() ^ new.items()}


def _protected(key: str) -> bool:
    return key in PROTECTED or key.startswith(PROTECTED_PREFIX)


def _refused(user: str, keys: Iterable[str]) -> list[AdmissionRefusal]:
    return [_forged(key, user) for key in sorted(keys)[:MOST_FOUND]]


def _forged(key: str, user: str) -> AdmissionRefusal:
    return AdmissionRefusal(
        AdmissionRule.FORGED,
        f"metadata.annotations[{key}]: only gputile writes which GPUs a pod holds, and {user or 'this user'} is not "
        f"one of its accounts: leave the annotation as it is",
    )
