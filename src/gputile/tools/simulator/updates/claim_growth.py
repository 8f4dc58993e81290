"""Judges whether a claim can ask for more storage than before: only if its StorageClass allows it.

That is the admission plugin PersistentVolumeClaimResize of Kubernetes.
"""

from collections.abc import Mapping
from typing import Any, Final

from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.wording import shown

Json = Mapping[str, Any]
_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
FIELD: Final = 'spec.resources.requests["storage"]'


def grows(written: Json, stored: Json) -> bool:
    """Return whether a claim asks for more than it is stored with."""
    try:
        return parse_quantity(_asked(written)) > parse_quantity(_asked(stored))
    except (QuantityError, TypeError):
        return False


def class_of(stored: Json) -> str:
    """Return the name of a claim's StorageClass, "" where it has none."""
    annotations = stored.get("metadata", {}).get("annotations", {})
    return str(annotations.get(_ANNOTATION) or stored.get("spec", {}).get("storageClassName") or "")


def refused_growth(stored: Json, storage_class: Json | None) -> str | None:
    """Return why a claim cannot grow, None where its ``storage_class``, None for none, lets it."""
    if storage_class is not None and storage_class.get("allowVolumeExpansion") is True:
        return None
    name = class_of(stored)
    named = f"its StorageClass {shown(name)} has no allowVolumeExpansion: true" if name else "it has no StorageClass"
    return f"Forbidden: it is in the cluster, and cannot ask for more: {named}"


def _asked(claim: Json) -> Any:
    return claim.get("spec", {}).get("resources", {}).get("requests", {}).get("storage", 0)
