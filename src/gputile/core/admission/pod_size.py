"""How large a pod may be that is judged: each rule looks at all of it, and other pods wait meanwhile."""

from typing import Final

from gputile.core.admission.pod_view import PodView
from gputile.core.admission.refusal import AdmissionRefusal, AdmissionRule

MOST_CONTAINERS: Final = 256
MOST_VOLUMES: Final = 1024
MOST_MOUNTS: Final = 4096  # of all containers, block devices included


def too_large(pod: PodView) -> list[AdmissionRefusal]:
    """Return that a pod has more parts than are judged, nothing where it has not; that much takes next to no time."""
    spec = pod.spec
    containers = [*spec.init_containers, *spec.containers]
    counts = (
        ("containers", len(containers), MOST_CONTAINERS),
        ("volumes", len(spec.volumes), MOST_VOLUMES),
        ("mounts", sum(len(c.volume_mounts) + len(c.volume_devices) for c in containers), MOST_MOUNTS),
    )
    return [
        AdmissionRefusal(
            AdmissionRule.POD,
            f"spec: the pod has {count} {what}, and {most} are the most that are judged: ask for fewer",
        )
        for what, count, most in counts
        if count > most
    ]
