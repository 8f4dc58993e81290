"""Refuses changes by other users to allocations (B2, B9) and to waiting pods of gangs (M13).

The extender binds no pod of a gang without a reservation, with or without a gate. So the removal of a gate by hand
starts no pod, and only hides why it is pending. Changed labels would put the pod into another gang, or into none.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from gputile.api.well_known import (
    ACK_ALLOCATION,
    ALLOCATION_ANNOTATION,
    GANG_GATE,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_COUNT_LABEL,
    GPUSHARE_PREFIX,
    MEMORY_UNIT_ANNOTATION,
    POD_GROUP_LABEL,
    RESERVATION_ANNOTATION,
)
from gputile.core.admission.pod_view import PodView
from gputile.core.refusal import AdmissionRule, Refusal

MOST_FOUND: Final = 50  # a pod may have thousands of mistakes: nobody reads them all, and finding them takes time
PROTECTED: Final = (ALLOCATION_ANNOTATION, ACK_ALLOCATION, RESERVATION_ANNOTATION)
PROTECTED_PREFIX: Final = GPUSHARE_PREFIX
# Set when a pod is created; later, only gputile's Binding and corrections change it.
STAMPED: Final = MEMORY_UNIT_ANNOTATION


def forged(
    old: Mapping[str, str], new: Mapping[str, str], user: str, *, is_new: bool = False
) -> list[Refusal[AdmissionRule]]:
    """Return a refusal for each allocation annotation that a write adds, alters or removes.

    The memory unit is set on a pod that ``is_new``, and is protected from then on.
    """
    changed = {key for key, _ in old.items() ^ new.items() if _is_protected(key) or (key == STAMPED and not is_new)}
    return [
        Refusal(
            AdmissionRule.FORGED,
            f"metadata.annotations[{key}]: only gputile writes which GPUs a pod holds, and {user or 'this user'} is "
            f"not one of its accounts: leave the annotation as it is",
        )
        for key in sorted(changed)[:MOST_FOUND]
    ]


def count_changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[Refusal[AdmissionRule]]:
    """Return a refusal if a write changes the number of GPUs that a pod requests (M10)."""
    if old.get(GPU_COUNT_LABEL) == new.get(GPU_COUNT_LABEL):
        return []
    rule = f"metadata.labels[{GPU_COUNT_LABEL}]: the number of GPUs is fixed when a pod is created: create it again"
    return [Refusal(AdmissionRule.COUNT_CHANGED, rule)]


def _is_protected(key: str) -> bool:
    return key in PROTECTED or key.startswith(PROTECTED_PREFIX)


FIXED: Final = (GANG_NAME_LABEL, GANG_SIZE_LABEL, POD_GROUP_LABEL)
_REMEDY: Final = "to start the pod alone, delete it and create it without the labels of a gang"


def broken_wait(old: PodView, new: PodView, user: str, trusted: Collection[str]) -> Iterator[Refusal[AdmissionRule]]:
    """Yield a refusal for each gang gate or label that a user other than gputile changes on a waiting pod.

    A gate on a pod whose labels name no gang is not protected: gputile neither sets nor removes it.
    """
    if user in trusted or not old.gated or old.metadata.labels.keys().isdisjoint(FIXED):
        return
    if not new.gated:
        yield Refusal(
            AdmissionRule.GANG_GATE,
            f"spec.schedulingGates[{GANG_GATE}]: gputile removes it when GPUs are reserved for the whole gang: keep "
            f"it; {_REMEDY}",
        )
    before, after = old.metadata.labels, new.metadata.labels
    for label in FIXED:
        if before.get(label) != after.get(label):
            yield Refusal(
                AdmissionRule.GANG_GATE,
                f"metadata.labels[{label}]: which pods start together is fixed while the pod waits for them: leave the "
                f"label; {_REMEDY}",
            )
