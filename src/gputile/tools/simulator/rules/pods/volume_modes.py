"""Checks that containers use claims as what they are: blocks as devices, and file systems as mounts.

An API server takes either. A kubelet does not: ``createVolumeSpec`` of its ``desired_state_of_world_populator.go``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken, Json

_USES: Final = (("volumeMounts", False), ("volumeDevices", True))


def is_block(claim: Any) -> bool:
    """Return whether the spec of a claim asks for blocks; it is of files where it says nothing."""
    return isinstance(claim, Mapping) and claim.get("volumeMode") == "Block"


def used_otherwise(path: str, spec: Json, blocks: Mapping[str, bool]) -> Iterator[Broken]:
    """Yield where containers of the pod's spec at ``path`` use volumes otherwise; ``blocks`` tells which are blocks."""
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            for field, of_blocks in _USES:
                for j, use in enumerate(container.get(field, ())):
                    if blocks.get(use["name"], of_blocks) != of_blocks:
                        mode, right = ("Filesystem", "volumeMounts") if of_blocks else ("Block", "volumeDevices")
                        rule = f"its claim has the volumeMode {mode}, so no kubelet starts the pod: use {right}"
                        yield f"{path}.{kind}[{i}].{field}[{j}].name", f"Invalid value: {shown(use['name'])}: {rule}"
