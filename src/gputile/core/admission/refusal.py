"""Words why a pod is refused: the field, the rule and the remedy, in one sentence each."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gputile.api.wording import shortened

MOST_SHOWN: Final = 12
MOST_FOUND: Final = 50  # a pod may have thousands of mistakes; nobody reads them, and looking for them takes time


class AdmissionRule(StrEnum):
    """The rules, by their names in refusals, metrics and ``docs/reference/admission.md``."""

    POD = "pod"
    AMOUNT = "gpu-amount"
    UNIT = "memory-unit"
    SHARE = "gpu-share"
    LEGACY_AFFINITY = "legacy-affinity"
    GANG = "gang"
    GANG_GATE = "gang-gate"
    FORGED = "forged-allocation"
    COUNT_CHANGED = "gpu-count-changed"
    ENVIRONMENT = "environment"
    PRIVILEGED = "privileged"
    HOST_NAMESPACE = "host-namespace"
    HOST_PATH = "host-path"
    MOUNT = "mount"
    DEVICE_ANNOTATION = "device-annotation"
    NODE_NAME = "node-name"


@dataclass(frozen=True, slots=True)
class AdmissionRefusal:
    """One broken rule; ``text`` names the field, the rule and the remedy; a very long text is cut."""

    rule: AdmissionRule
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", shortened(self.text))


def message(refusals: Sequence[AdmissionRefusal]) -> str:
    """Return what the user is told: the first ``MOST_SHOWN`` refusals, and whether there are more."""
    shown = [f"{refusal.text} [{refusal.rule}]" for refusal in refusals[:MOST_SHOWN]]
    if len(refusals) > MOST_SHOWN:
        shown.append("and more")
    return f"gputile: {'; '.join(shown)}"
