"""Reads the table of kinds that refines what shape tells: names, labels and numbers of the pods.

The table is ``pod_kinds.yaml``; people add to it by a file of the same form.
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


class _TableSection(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a file that people write: an unknown field is an error, since it may be a typing mistake."""


class Count(_TableSection, frozen=True):
    """A number in the object: the one at ``path`` or else ``default``, divided by the one at ``per``, and ``plus``."""

    path: Annotated[Path, described("Where the number stands in the object.")]
    default: Annotated[int, described("The number where nothing stands there.", ge=0)] = 1
    per: Annotated[str, described("Where a number stands by which it is divided.")] = ""
    plus: Annotated[int, described("What is added to it.")] = 0


class PodsOfKind(_TableSection, frozen=True):
    """Pods that a kind makes of a template, which is found by its shape at ``template``, or else at ``otherwise``.

    In a path "*" stands for each entry of a list or mapping; a number's "*" is the same entry as the template's. In
    ``name`` and ``labels``, ``{name}`` is the object's name, ``{key}`` the entry's, and ``{number}`` counts the pods of
    the template.
    """

    template: Annotated[Path, described("Where the template of the pods stands; * is each entry of a list or mapping.")]
    otherwise: Annotated[str, described("Where it stands if not there.")] = ""
    count: Annotated[
        tuple[Path | Count, ...],
        described("Numbers whose product is how many pods of the template there are; none: as its shape says."),
    ] = ()
    name: Annotated[
        str, described("Names of the pods: {name} is the object's, {key} the entry's, {number} counts the pods.")
    ] = ""
    labels: Annotated[
        dict[str, str], described("Labels that the kind's controller adds to the pods, with the same braces.")
    ] = {}


class PodKind(_TableSection, frozen=True):
    """A kind; one without ``pods`` makes none.

    What stands at ``suspended``, and is not false, holds its pods back. ``owned`` are labels that identify its pods if
    their controller is another object.
    """

    api_version: Annotated[str, described("The kind's apiVersion.")]
    kind: Annotated[str, described("The kind.")]
    pods: Annotated[tuple[PodsOfKind, ...], described("The pods that an object of it makes; none: it makes none.")] = ()
    suspended: Annotated[str, described("Where the object says that its pods are held back.")] = ""
    owned: Annotated[
        dict[str, str], described("Labels by which its pods are known where their controller is another object.")
    ] = {}


class KindsTable(_TableSection, frozen=True):
    """The whole table."""

    api_version: Annotated[Literal["gputile.io/v1alpha1"], described("The version of this file.")]
    kind: Annotated[Literal["PodKinds"], described("What this file is.")]
    kinds: Annotated[tuple[PodKind, ...], described("The kinds.")]


@dataclass(slots=True)
class PodKinds:
    """The table in force, by apiVersion and kind."""

    kinds: dict[tuple[str, str], PodKind] = field(default_factory=dict)

    def find(self, manifest: Manifest) -> PodKind | None:
        """Return what is known of an object's kind."""
        return self.kinds.get((manifest.api_version, manifest.kind))

    def of_kind(self, kind: str) -> list[str]:
        """Return the apiVersions that have a kind of this name."""
        return [version for version, name in self.kinds if name == kind]


def known_kinds(paths: Iterable[str] = ()) -> PodKinds:
    """Return the table with the entries of the files added, which replace entries of the same kind.

    Raises:
        ManifestError: a file cannot be used.
    """
    tables = [convert(load_document(pkgutil.get_data(__name__, "pod_kinds.yaml") or b""), KindsTable)]
    for manifest in load_manifests(paths):
        if (manifest.api_version, manifest.kind) != (API_VERSION, KIND):
            raise manifest.origin.error("kind", f"must be {KIND} of {API_VERSION}")
        table = manifest.decode(KindsTable)
        for i, each in enumerate(table.kinds):
            if each.kind in kubernetes_kinds().kinds.get(each.api_version, {}):
                why = f"{shown(each.kind)} of {shown(each.api_version)} is Kubernetes' own, and is read as it is there"
                raise manifest.origin.error(f"kinds[{i}].kind", why)
        tables.append(table)
    return PodKinds({(each.api_version, each.kind): each for table in tables for each in table.kinds})
