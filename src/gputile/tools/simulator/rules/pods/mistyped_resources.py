"""Finds extended resources that no node offers, and whose names are like one that some do."""

from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Final

from gputile.api.core import Node
from gputile.api.well_known import GPU_CORE, GPU_COUNT, GPU_MEMORY, GPU_RESOURCES, MIG_PREFIX
from gputile.api.wording import nearest, shown
from gputile.tools.simulator.rules.values.fields import Json

_KINDS: Final = ("initContainers", "containers")
_LIKE: Final = 0.75  # amd.com/gpu is less like nvidia.com/gpu
# The same of HAMi, whose memory is in MiB.
_OTHERS: Final = MappingProxyType({"nvidia.com/gpumem": GPU_MEMORY, "nvidia.com/gpucores": GPU_CORE})


class MistypedResources:
    """Tells each name once; right are those that the nodes offer, and those that gputile's agents may."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        names = {*GPU_RESOURCES, *(name for node in nodes for name in node.status.allocatable)}
        self._offered = frozenset(name for name in names if "/" in name and name != GPU_COUNT)
        self._seen: set[str] = set()

    def in_spec(self, prefix: str, spec: Json) -> Iterator[str]:
        """Yield sentences on the limits in a valid pod's spec; ``prefix`` stands before its fields."""
        for kind in _KINDS:
            for i, container in enumerate(spec.get(kind, ())):
                for said in self.among(container.get("resources", {}).get("limits", {})):
                    yield f"{prefix}spec.{kind}[{i}].resources.limits: {said}"

    def among(self, names: Iterable[str]) -> Iterator[str]:
        """Yield sentences on those of the names that are nearly right."""
        for name in names:
            if "/" not in name or name.startswith(MIG_PREFIX) or name in self._offered | self._seen:
                continue
            self._seen.add(name)
            if meant := self._meant(name):
                yield f"no node offers {shown(name)}{meant}"

    def _meant(self, name: str) -> str:
        longer = min((each for each in self._offered if each.startswith(f"{name}.")), default="")
        named = longer or _OTHERS.get(name)
        return f"; did you mean {named}?" if named else nearest(name, self._offered, _LIKE)
