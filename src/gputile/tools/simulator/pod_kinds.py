"""Reads the table of kinds, which states names, labels and counts of custom resources' pods.

``pod_shapes`` finds these pods. The built-in table is ``pod_kinds.yaml``. Users extend the table
with files of the same format.
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
    """A section of the table. An unknown field is an error, because it may be a typo."""


class Count(_TableSection, frozen=True):
    """A number that is computed from an object as ``path // per + plus``."""

    path: Annotated[Path, described("The path of the number in the object.")]
    otherwise: Annotated[
        tuple[Path, ...], described("Paths to try in this order if there is no number at `path`.")
    ] = ()
    default: Annotated[int, described("The number to use if there is none at the path.", ge=0)] = 1
    per: Annotated[
        str, described("The path of a number by which this number is divided, if any.")
    ] = ""
    plus: Annotated[int, described("A number that is added to the result.")] = 0


class PodsOfKind(_TableSection, frozen=True):
    """Pods that a kind creates from one template.

    In the template's path, "*" matches each entry of a list or mapping. In the path of a count, "*"
    stands for the entry that matched in the template's path.
    """

    template: Annotated[
        Path, described("The path of the pod template. * matches each entry of a list or mapping.")
    ]
    otherwise: Annotated[
        str, described("The path of the pod template if there is none at the first path.")
    ] = ""
    count: Annotated[
        tuple[Path | Count, ...],
        described(
            "Numbers, whose product is the number of pods of this template. Each is given by its "
            "path in the object. If empty, the number is inferred from the object."
        ),
    ] = ()
    name: Annotated[
        str,
        described(
            "The names of the pods. {name} is the name of the object, {key} the name of the entry, "
            "and {number} the index of the pod."
        ),
    ] = ""
    labels: Annotated[
        dict[str, str],
        described(
            "Labels that the kind's controller adds to the pods. {name}, {key} and {number} are "
            "replaced as in names."
        ),
    ] = {}


class PodKind(_TableSection, frozen=True):
    """A kind, and the pods that its objects create."""

    api_version: Annotated[str, described("The kind's apiVersion.")]
    kind: Annotated[str, described("The kind.")]
    pods: Annotated[
        tuple[PodsOfKind, ...],
        described("The pods that are created for an object of this kind. The default is none."),
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
    """A file with entries of the table."""

    api_version: Annotated[
        Literal["gputile.io/v1alpha1"], described("The version of the format of this file.")
    ]
    kind: Annotated[Literal["PodKinds"], described("The kind of this file.")]
    kinds: Annotated[tuple[PodKind, ...], described("The kinds.")]


@dataclass(slots=True)
class PodKinds:
    """All entries of the table, by apiVersion and kind."""

    kinds: dict[tuple[str, str], PodKind] = field(default_factory=dict)

    def find(self, manifest: Manifest) -> PodKind | None:
        return self.kinds.get((manifest.api_version, manifest.kind))

    def of_kind(self, kind: str) -> list[str]:
        """Return the apiVersions for which the table has an entry of this kind."""
        return [version for version, name in self.kinds if name == kind]


def known_kinds(paths: Iterable[str] = ()) -> PodKinds:
    """Return the built-in table and the entries of files, which replace entries of the same kind.

    Raises:
        ManifestError: a file cannot be read, or an entry is invalid.
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
                    f"{shown(each.kind)} of {shown(each.api_version)} is a kind of Kubernetes, and "
                    "cannot be redefined"
                )
                raise manifest.origin.error(f"kinds[{i}].kind", why)
        tables.append(table)
    return PodKinds(
        {(each.api_version, each.kind): each for table in tables for each in table.kinds}
    )
