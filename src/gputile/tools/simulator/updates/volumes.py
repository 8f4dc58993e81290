"""Tells what of the volumes in a cluster is not judged: they are not read."""

from collections.abc import Iterable, Iterator

from gputile.api.core import Pod
from gputile.tools.simulator.documents.notes import Note


def volume_notes(pods: Iterable[Pod]) -> Iterator[Note]:
    """Yield a note if one of ``pods`` has a claim to a volume."""
    claiming = [pod.key for pod in pods if any(each.persistent_volume_claim for each in pod.spec.volumes)]
    if claiming:
        others = f" and {len(claiming) - 1:,} more" if claiming[1:] else ""
        said = "whether the nodes can have the volumes of their claims, and other pods have one with ReadWriteOncePod, "
        yield Note(f"pod {claiming[0]}{others}: {said}is not judged")
