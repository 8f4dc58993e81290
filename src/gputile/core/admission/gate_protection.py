"""Protects a pod that waits for its gang: only gputile may remove its scheduling gate (M13).

The extender binds no pod of a gang without a reservation, with or without a gate. So removing the gate by hand starts
nothing, and only hides why the pod is pending. Changed labels would put the pod into another gang, or into none.
"""

from collections.abc import Collection, Iterator
from typing import Final

from gputile.api.well_known import GANG_GATE, GANG_NAME_LABEL, GANG_SIZE_LABEL, POD_GROUP_LABEL
from gputile.core.admission.pod_view import PodView
from gputile.core.admission.refusal import AdmissionRefusal, AdmissionRule

FIXED: Final = (GANG_NAME_LABEL, GANG_SIZE_LABEL, POD_GROUP_LABEL)
_REMEDY: Final = "to start the pod alone, delete it and create it without the labels of a gang"


def broken_wait(old: PodView, new: PodView, user: str, trusted: Collection[str]) -> Iterator[AdmissionRefusal]:
    """Yield the gates and labels that a change takes from a waiting pod of a gang although only gputile may.

    A gate on a pod whose labels name no gang is not protected: gputile neither sets nor removes it.
    """
    if user in trusted or not _gated(old) or old.metadata.labels.keys().isdisjoint(FIXED):
        return
    if not _gated(new):
        yield AdmissionRefusal(
            AdmissionRule.GANG_GATE,
            f"spec.schedulingGates[{GANG_GATE}]: gputile removes it when all pods of the gang have their places: leave "
            f"it; {_REMEDY}",
        )
    before, after = old.metadata.labels, new.metadata.labels
    for label in FIXED:
        if before.get(label) != after.get(label):
            yield AdmissionRefusal(
                AdmissionRule.GANG_GATE,
                f"metadata.labels[{label}]: which pods start together is fixed while the pod waits for them: leave the "
                f"label; {_REMEDY}",
            )


def _gated(pod: PodView) -> bool:
    return any(gate.name == GANG_GATE for gate in pod.spec.scheduling_gates)
