"""Reads the table of kinds, which adds names, labels and counts to pods that were found by shape.

The built-in table is ``pod_kinds.yaml``. Users extend it with files of the same form.
"""

import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec

from gputile.api.conversion import convert
from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.wording import described, shown
from gputile.support.yaml_loader import load_document
from gputile.tools.simulator.described_cluster import API_VERSION
from gputile.tools.simulator.manifests import Manifest, load_manifests

KIND: Final = "PodKinds"
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class _TableSection(
    msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True
):
    """A section of a file written by hand: an unknown field is an error, since it may be a typo."""


class Count(_TableSection, frozen=True):
    """The number at ``path`` (or ``default``), divided by the one at ``per``, plus ``plus``."""

    path: Annotated[Path, described("The path of the number in the object.")]
    default: Annotated[int, described("The number to use if there is none at the path.", ge=0)] = 1
    per: Annotated[
        str, described('The path of a number by which this number is divided; "" for none.')
    ] = ""
    plus: Annotated[int, described("A number that is added to the result.")] = 0


class PodsOfKind(_TableSection, frozen=True):
    """Pods that a kind creates from the template at ``template``, or else at ``otherwise``.

    In a path, "*" matches each entry of a list or mapping; in the path of a count, it is the entry
    that matched in the template's path. In ``name`` and ``labels``, ``{name}`` is the object's
    name, ``{key}`` the name of the entry, and ``{number}`` the index of the pod.
    """

    template: Annotated[
        Path, described("The path of the pod template; * matches each entry of a list or mapping.")
    ]
    otherwise: Annotated[
        str, described("The path of the pod template if there is none at the first path.")
    ] = ""
    count: Annotated[
        tuple[Path | Count, ...],
        described(
            "Numbers, or their paths in the object, whose product is the number of pods of this "
            "template. If empty, the number follows from the shape of the object."
        ),
    ] = ()
    name: Annotated[
        str,
        described(
            "The names of the pods: {name} is the name of the object, {key} that of the entry, "
            "{number} the index of the pod."
        ),
    ] = ""
    labels: Annotated[
        dict[str, str],
        described(
            "Labels that the kind's controller adds to the pods; {name}, {key} and {number} are "
            "replaced as in names."
        ),
    ] = {}


class PodKind(_TableSection, frozen=True):
    """A kind, and the pods that its objects create; without ``pods`` they create none.

    An object is suspended if the field at ``suspended`` exists and is not false. ``owned`` are
    labels that identify its pods if their controller is another object.
    """

    api_version: Annotated[str, described("The kind's apiVersion.")]
    kind: Annotated[str, described("The kind.")]
    pods: Annotated[
        tuple[PodsOfKind, ...],
        described("The pods that are created for an object of this kind; empty if there are none."),
    ] = ()
    suspended: Annotated[
        str,
        described("The path of the field that suspends the object, if it is set and not false."),
    ] = ""
    owned: Annotated[
        dict[str, str],
        described(
            "Labels that identify the pods of the object if their controller is another object."
        ),
    ] = {}


class KindsTable(_TableSection, frozen=True):
    """A file with a table of kinds."""

    api_version: Annotated[
        Literal["gputile.io/v1alpha1"], described("The version of the format of this file.")
    ]
    kind: Annotated[Literal["PodKinds"], described("The kind of this file.")]
    kinds: Annotated[tuple[PodKind, ...], described("The kinds.")]


@dataclass(slots=True)
class PodKinds:
    """The table in force, by apiVersion and kind."""

    kinds: dict[tuple[str, str], PodKind] = field(default_factory=dict)

    def find(self, manifest: Manifest) -> PodKind | None:
        """Return the entry for an object's kind, or None."""
        return self.kinds.get((manifest.api_version, manifest.kind))

    def of_kind(self, kind: str) -> list[str]:
        """Return the apiVersions in which the table has a kind of this name."""
        return [version for version, name in self.kinds if name == kind]


def known_kinds(paths: Iterable[str] = ()) -> PodKinds:
    """Return the built-in table with the files' entries, which replace those of the same kind.

    Raises:
        ManifestError: a file cannot be used.
    """
    tables = [
        convert(load_document(pkgutil.get_data(__name__, "pod_kinds.yaml") or b""), KindsTable)
    ]
    for manifest in load_manifests(paths):
        if (manifest.api_version, manifest.kind) != (API_VERSION, KIND):
            raise manifest.origin.error("kind", f"must be {KIND} of {API_VERSION}")
        table = manifest.decode(KindsTable)
        for i, each in enumerate(table.kinds):
            if each.kind in kubernetes_kinds().kinds.get(each.api_version, {}):
                why = (
                    f"{shown(each.kind)} of {shown(each.api_version)} is Kubernetes' own, and is "
                    "read as it is there"
                )
                raise manifest.origin.error(f"kinds[{i}].kind", why)
        tables.append(table)
    return PodKinds(
        {(each.api_version, each.kind): each for table in tables for each in table.kinds}
    )
