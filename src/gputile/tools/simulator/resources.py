"""Checks which resources containers ask for: how much of each, and whether a name is nearly that of another one."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from gputile.api.core import Node
from gputile.api.quantity import parse_quantity
from gputile.api.well_known import GPU_CORE, GPU_COUNT, GPU_MEMORY, GPU_RESOURCES, MIG_PREFIX
from gputile.api.wording import nearest, shown
from gputile.core.kube_predicates.pod_requests import is_pod_level
from gputile.tools.simulator.fields import Broken, Json

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


def broken_amounts(path: str, spec: Json) -> Iterator[Broken]:
    """Yield amounts of resources in the spec at ``path`` that no pod can ask for."""
    yield from _amounts(f"{path}.overhead", spec.get("overhead", {}))
    for kind, amounts in spec.get("resources", {}).items():
        for name in (name for name in amounts if kind != "claims" and not is_pod_level(name)):
            rule = "a pod as a whole asks for cpu, memory and hugepages-* only: set it in a container"
            yield f"{path}.resources.{kind}[{shown(name)}]", rule
    for kind in _KINDS:
        for i, container in enumerate(spec.get(kind, ())):
            resources, where = container.get("resources", {}), f"{path}.{kind}[{i}].resources"
            limits, requests = resources.get("limits", {}), resources.get("requests", {})
            yield from _amounts(f"{where}.limits", limits)
            yield from _amounts(f"{where}.requests", requests)
            for name in requests.keys() & limits.keys():
                if parse_quantity(requests[name]) > parse_quantity(limits[name]):
                    rule = f"must be less than or equal to {name} limit of {limits[name]}"
                    yield f"{where}.requests", f"Invalid value: {shown(str(requests[name]))}: {rule}"


def _amounts(path: str, amounts: Mapping[str, str | int | float]) -> Iterator[Broken]:
    for name, written in amounts.items():
        value = parse_quantity(written)
        if value < 0:
            rule = "must be greater than or equal to 0"
        elif "/" in name and "kubernetes.io/" not in name and value.denominator != 1:
            rule = "must be an integer"
        else:
            continue
        yield f"{path}[{shown(name)}]", f"Invalid value: {shown(str(written))}: {rule}"
