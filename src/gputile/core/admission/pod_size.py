"""Limits how large a pod may be.

Each rule reads all of it, and other pods wait meanwhile.
"""

from typing import Final

import msgspec

from gputile.api.conversion import has_more_items
from gputile.api.core import Pod
from gputile.core.admission.pod_view import PodView
from gputile.core.refusal import AdmissionRule, Refusal

MOST_CONTAINERS: Final = 256
MOST_VOLUMES: Final = 1024
MOST_MOUNTS: Final = 4096  # of all containers, block devices included
MOST_PATH_CHARACTERS: Final = 256 * 1024  # of all mounts and host paths; Linux takes 4,096 for one
MOST_NODE_RULES: Final = 1024  # terms of node affinity, and their expressions
MOST_ANNOTATIONS: Final = 16_384  # Kubernetes takes 256 KiB of them
MOST_TOLERATIONS: Final = 1024
MOST_ITEMS: Final = 65_536  # of the object as JSON: each item takes time to decode, whatever it is


def too_many_items(*objects: msgspec.Raw) -> list[Refusal[AdmissionRule]]:
    """Return a refusal for an object with too many items, none for others; it is counted without decoding."""
    if not any(has_more_items(bytes(each), MOST_ITEMS) for each in objects):
        return []
    return [
        Refusal(
            AdmissionRule.POD,
            f"the object has more than {MOST_ITEMS} fields and entries of lists, labels and annotations, and is not "
            f"judged: write fewer",
        )
    ]


def too_large(pod: Pod, view: PodView) -> list[Refusal[AdmissionRule]]:
    """Return a refusal for a pod with too many parts, none for others; counting them takes next to no time.

    Of a change, ``view`` is what it adds.
    """
    spec = view.spec
    containers = [*spec.init_containers, *spec.containers, *spec.ephemeral_containers]
    counts = (
        ("containers", len(containers), MOST_CONTAINERS),
        ("volumes", len(spec.volumes), MOST_VOLUMES),
        ("mounts", sum(len(c.volume_mounts) + len(c.volume_devices) for c in containers), MOST_MOUNTS),
        ("characters of paths", _path_characters(view), MOST_PATH_CHARACTERS),
        ("terms and expressions of node affinity", _node_rules(pod), MOST_NODE_RULES),
        ("annotations", len(view.metadata.annotations), MOST_ANNOTATIONS),
        ("tolerations", len(pod.spec.tolerations), MOST_TOLERATIONS),
    )
    return [
        Refusal(
            AdmissionRule.POD,
            f"the pod has {count} {what}, and {most} are the most that are judged: ask for fewer",
        )
        for what, count, most in counts
        if count > most
    ]


def _path_characters(view: PodView) -> int:
    paths = [volume.host_path.path for volume in view.spec.volumes if volume.host_path is not None]
    for _, container in view.containers():
        paths += [mount.mount_path for mount in container.volume_mounts]
        paths += [device.device_path for device in container.volume_devices]
        paths.append(container.termination_message_path)
    return sum(map(len, paths))


def _node_rules(pod: Pod) -> int:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None:
        return 0
    terms = [*(affinity.required.node_selector_terms if affinity.required else ())]
    terms += [preferred.preference for preferred in affinity.preferred]
    return len(terms) + sum(len(term.match_expressions) for term in terms)
