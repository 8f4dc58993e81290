"""Tells what is believed of objects that an API server has printed: those with a UID, or an owner's."""

from collections.abc import Iterable, Iterator
from typing import Final

from gputile.tools.simulator.documents.manifests import Manifest
from gputile.tools.simulator.documents.notes import Note
from gputile.tools.simulator.rules.values.names import is_version

_RUNS: Final = (
    "it has a UID and a node, so it counts as running there, and is not judged: without both it is judged as a new one"
)
_VERSION: Final = (
    "metadata.resourceVersion: an API server refuses the object if it has changed since, or is not there: leave it out"
)
_OWNERS: Final = (
    "metadata.ownerReferences: without an object of one of these UIDs the cluster deletes it again: leave them out"
)


def printed_notes(manifests: Iterable[Manifest]) -> Iterator[Note]:
    """Yield what an API server may say otherwise of objects that do not describe a cluster."""
    for manifest in manifests:
        if manifest.described:
            continue
        if not manifest.stored:
            metadata = manifest.body.get("metadata")
            if isinstance(metadata, dict) and metadata.get("ownerReferences"):
                yield Note(_OWNERS, manifest.origin)
            continue
        if manifest.runs:
            yield Note(_RUNS, manifest.origin)
        if is_version(manifest.body["metadata"].get("resourceVersion")):
            yield Note(_VERSION, manifest.origin)
