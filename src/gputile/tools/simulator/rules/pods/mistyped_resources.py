"""Finds extended resources that no node offers, and whose names are like one that some do."""

from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Final

from gputile.api.well_known import GPU_CORE, GPU_COUNT, GPU_MEMORY, MIG_PREFIX
from gputile.api.wording import nearest, shown
from gputile.tools.simulator.rules.values.fields import Json

_KINDS: Final = ("initContainers", "containers")
_LIKE: Final = 0.75  # amd.com/gpu is less like nvidia.com/gpu


# The same of HAMi, whose memory is in MiB.
_OTHERS: Final = MappingProxyType({"nvidia.com/gpumem": GPU_MEMORY, "nvidia.com/gpucores": GPU_CORE})


class MistypedResources:
    """Tells each name once; ``offered`` are those that nodes offer or may offer, and that may be meant."""

    def __init__(self, offered: Iterable[str]) -> None:
        self._offered = frozenset(name for name in offered if "/" in name and name != GPU_COUNT)
        self._seen: set[str] = set()

    def told(self, prefix: str, spec: Json) -> Iterator[str]:
        """Yield sentences on those of a valid pod's spec; ``prefix`` stands before its fields."""
        for kind in _KINDS:
            for i, container in enumerate(spec.get(kind, ())):
                for name in container.get("resources", {}).get("limits", {}):
                    if "/" not in name or name.startswith(MIG_PREFIX) or name in self._offered | self._seen:
                        continue
                    self._seen.add(name)
                    if meant := self._meant(name):
                        yield f"{prefix}spec.{kind}[{i}].resources.limits: no node offers {shown(name)}{meant}"

    def _meant(self, name: str) -> str:
        longer = min((each for each in self._offered if each.startswith(f"{name}.")), default="")
        named = longer or _OTHERS.get(name)
        return f"; did you mean {named}?" if named else nearest(name, self._offered, _LIKE)
