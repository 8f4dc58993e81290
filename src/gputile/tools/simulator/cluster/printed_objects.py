"""Tells what is believed of objects that an API server has printed, those with a UID."""

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


def printed_notes(manifests: Iterable[Manifest]) -> Iterator[Note]:
    """Yield what an API server may say otherwise of objects that do not describe a cluster."""
    for manifest in manifests:
        if manifest.described or not manifest.stored:
            continue
        if manifest.runs:
            yield Note(_RUNS, manifest.origin)
        if is_version(manifest.body["metadata"].get("resourceVersion")):
            yield Note(_VERSION, manifest.origin)
