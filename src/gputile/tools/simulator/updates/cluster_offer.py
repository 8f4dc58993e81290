"""Judges whether a cluster has what manifests need to be stored: their kinds and namespaces."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gputile.api.wording import nearest, shown
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError

_MAKES_KINDS: Final = ("CustomResourceDefinition", "apiextensions.k8s.io")


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The namespaces of a cluster, by name: whether each is being deleted."""

    deleted: Mapping[str, bool] = field(default_factory=dict)

    def refusal(self, name: str) -> str | None:
        """Return why an API server stores nothing new in a namespace, None where it does."""
        if name not in self.deleted:
            return f"namespaces {shown(name)} not found{nearest(name, self.deleted)}"
        if self.deleted[name]:
            return f"Forbidden: unable to create new content in namespace {name} because it is being terminated"
        return None


@dataclass(frozen=True, slots=True)
class ClusterOffer:
    """What a cluster has. ``kinds`` are those of each version of a group, and whether their objects have a namespace.

    A version that is missing is not known. ``namespaces`` are None where they are not known.
    """

    kinds: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    namespaces: Namespaces | None = None

    def refused(self, manifests: Iterable[Manifest]) -> Iterator[ManifestError]:
        """Yield each manifest whose kind or namespace the cluster does not have, and no other manifest brings."""
        given = [manifest for manifest in manifests if _is_new(manifest)]
        made = {kind for manifest in given if (kind := _made_kind(manifest))}
        known = self.namespaces
        if known is not None:
            written = {_name(manifest) for manifest in given if (manifest.kind, manifest.group) == ("Namespace", "")}
            known = replace(known, deleted={**dict.fromkeys(written, False), **known.deleted})
        for manifest in given:
            served = self.kinds.get(manifest.api_version)
            if served is None or (manifest.kind, manifest.group) in made:
                continue
            if manifest.kind not in served:
                what = f"no matches for kind {shown(manifest.kind)} in version {shown(manifest.api_version)}"
                yield manifest.origin.error("", f"{what}: the cluster does not serve it")
            elif served[manifest.kind] and known is not None and (why := known.refusal(_namespace(manifest))):
                yield manifest.origin.error("metadata.namespace", why)


def asked_versions(manifests: Iterable[Manifest]) -> list[str]:
    """Return the versions of groups that ``ClusterOffer`` needs to know for ``manifests``, each once."""
    return list(dict.fromkeys(manifest.api_version for manifest in manifests if _is_new(manifest)))


def _is_new(manifest: Manifest) -> bool:
    return not manifest.described and manifest.judged


def _made_kind(manifest: Manifest) -> tuple[str, str] | None:
    """Return kind and group of what a CustomResourceDefinition defines, None for other objects."""
    if (manifest.kind, manifest.group) != _MAKES_KINDS:
        return None
    spec = manifest.body.get("spec")
    names = spec.get("names") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(names, dict):
        return None
    return str(names.get("kind")), str(spec.get("group"))


def _name(manifest: Manifest) -> str:
    return str(_metadata(manifest).get("name"))


def _namespace(manifest: Manifest) -> str:
    return str(_metadata(manifest).get("namespace") or "default")


def _metadata(manifest: Manifest) -> Mapping[str, object]:
    metadata = manifest.body.get("metadata")
    return metadata if isinstance(metadata, dict) else {}
