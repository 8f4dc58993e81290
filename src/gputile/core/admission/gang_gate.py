"""A pod that waits for its gang: nobody but gputile lets it go (M13).

The extender starts no pod of a gang without its place, gate or no gate. So a gate that is removed by hand starts
nothing, and only hides why the pod is pending; with other labels a pod would wait for another gang, or for none.
"""

from collections.abc import Collection, Iterator
from typing import Final

from gputile.api.well_known import GANG_GATE, GANG_NAME_LABEL, GANG_SIZE_LABEL, POD_GROUP_LABEL
from gputile.core.admission.pod_view import PodView
from gputile.core.admission.refusal import AdmissionRefusal, AdmissionRule

FIXED: Final = (GANG_NAME_LABEL, GANG_SIZE_LABEL, POD_GROUP_LABEL)
_REMEDY: Final = "to start the pod alone, delete it and create it without the labels of a gang"


def broken_wait(old: PodView, new: PodView, user: str, trusted: Collection[str]) -> Iterator[AdmissionRefusal]:
    """Yield what a change takes from a pod that waits for its gang, and only gputile may.

    A gate on a pod whose labels name no gang is nobody's: gputile neither sets it nor takes it away.
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
