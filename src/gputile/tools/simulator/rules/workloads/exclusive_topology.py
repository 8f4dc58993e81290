"""Finds annotations by which JobSets and LeaderWorkerSets ask for topology domains of their own.

Their webhooks write affinities into the pods for it, which differ from Job to Job. They are not repeated here, so an
object that asks for it cannot be judged.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.documents.paths import Step, entries, written
from gputile.tools.simulator.rules.values.fields import Broken

_KINDS: Final = ("JobSet", "LeaderWorkerSet")
_ANNOTATION: Final = "exclusive-topology"  # alpha.jobset.sigs.k8s.io/..., leaderworkerset.sigs.k8s.io/subgroup-...


def broken_exclusive_topology(kind: str, body: Mapping[str, Any]) -> Iterator[Broken]:
    """Yield the annotations of an object, or of a template in it, that ask for domains of their own."""
    if kind in _KINDS:
        yield from _found(body, ())


def _found(value: Any, steps: tuple[Step, ...]) -> Iterator[Broken]:
    for step, entry in entries(value):
        if step == "annotations" and isinstance(entry, dict):
            for name in entry:
                if str(name).endswith(_ANNOTATION):
                    rule = "which domains its pods get is not judged here: leave the annotation out"
                    yield f"{written((*steps, step))}[{shown(str(name))}]", f"{rule} to see where they fit without it"
        else:
            yield from _found(entry, (*steps, step))
