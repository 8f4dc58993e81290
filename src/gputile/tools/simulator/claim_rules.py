"""What the API server demands of a claim to a volume, as StatefulSets and ephemeral volumes make them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.affinity_rules import broken_selector
from gputile.tools.simulator.fields import Broken
from gputile.tools.simulator.names import broken_subdomain

_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")


def broken_claim(path: str, spec: Mapping[str, Any]) -> Iterator[Broken]:
    """Yield what is wrong with the spec at ``path`` of a PersistentVolumeClaim."""
    modes = spec.get("accessModes", ())
    if not modes:
        yield f"{path}.accessModes", "Required value: at least 1 access mode is required"
    for i, mode in enumerate(modes):
        if mode not in _MODES:
            valid = ", ".join(map(shown, _MODES))
            yield f"{path}.accessModes[{i}]", f"Unsupported value: {shown(mode)}: supported values: {valid}"
    if "ReadWriteOncePod" in modes and len(set(modes)) > 1:
        yield f"{path}.accessModes", "Forbidden: may not use ReadWriteOncePod with other access modes"
    where = f'{path}.resources.requests["storage"]'
    size = spec.get("resources", {}).get("requests", {}).get("storage")
    if size is None:
        yield where, "Required value"
    elif parse_quantity(size) <= 0:
        yield where, f"Invalid value: {shown(str(size))}: must be greater than zero"
    yield from broken_selector(f"{path}.selector", spec.get("selector", {}))
    if spec.get("storageClassName") and (why := broken_subdomain(spec["storageClassName"])):
        yield f"{path}.storageClassName", why
