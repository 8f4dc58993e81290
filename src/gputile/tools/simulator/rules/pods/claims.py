"""Checks claims to volumes, as StatefulSets and ephemeral volumes make them, as the API server does."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken
from gputile.tools.simulator.rules.values.names import broken_subdomain

_CLAIM: Final = "PersistentVolumeClaim"


def broken_claim(path: str, spec: Mapping[str, Any], *, template: bool = False) -> Iterator[Broken]:
    """Yield what is wrong with the spec at ``path`` of a PersistentVolumeClaim, or of a ``template`` of one."""
    modes = spec.get("accessModes", ())
    if not modes:
        yield f"{path}.accessModes", "Required value: at least 1 access mode is required"
    if "ReadWriteOncePod" in modes and len(set(modes)) > 1:
        yield f"{path}.accessModes", "Forbidden: may not use ReadWriteOncePod with other access modes"
    where = f'{path}.resources.requests["storage"]'
    size = spec.get("resources", {}).get("requests", {}).get("storage")
    if size is None:
        yield where, "Required value"
    elif parse_quantity(size) <= 0:
        yield where, f"Invalid value: {shown(str(size))}: must be greater than zero"
    yield from _sources(path, spec, template=template)


def _sources(path: str, spec: Mapping[str, Any], *, template: bool) -> Iterator[Broken]:
    """Yield what is wrong with what a volume is filled from."""
    sources = {field: spec[field] for field in ("dataSource", "dataSourceRef") if field in spec}
    reference = spec.get("dataSourceRef", {})
    for field, source in sources.items():
        if field == "dataSource" and not template:
            continue  # one that is of no known kind is dropped from a claim
        group = source.get("apiGroup", "")
        if not group and source["kind"] != _CLAIM:
            rule = f"must be {_CLAIM} where there is no apiGroup"
            yield f"{path}.{field}.kind", f"Invalid value: {shown(source['kind'])}: {rule}"
        elif group and (why := broken_subdomain(group)):
            yield f"{path}.{field}.apiGroup", why
    if reference.get("namespace"):
        if "dataSource" in spec:
            yield f"{path}.dataSource", "Invalid value: may not be specified when dataSourceRef.namespace is specified"
    elif len({(each.get("apiGroup"), each["kind"], each["name"]) for each in sources.values()}) > 1:
        yield f"{path}.dataSource", "Invalid value: must match dataSourceRef"
