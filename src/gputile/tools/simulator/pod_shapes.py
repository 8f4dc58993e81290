"""Finds the pods of objects whose kind nobody listed, by the shape of what stands in them.

A list of ``containers`` is a pod's, and a mapping whose resources name GPUs is a container. How many pods there are is
said by fields such as ``replicas`` beside or above them. What was found is told to the user, since it is an inference.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.well_known import GPU_RESOURCES, MIG_PREFIX, WHOLE_GPU
from gputile.tools.simulator.fields import Json, broken_fields, names_of_fields
from gputile.tools.simulator.manifests import Manifest
from gputile.tools.simulator.pod_kinds import PodsOfKind, Step, entries, written
from gputile.tools.simulator.pod_templates import MOST_PODS_OF_A_TEMPLATE, Group

_POD: Final = "core.v1.PodSpec"
_CONTAINER: Final = "core.v1.Container"
# Fields that count pods, in the order in which they are looked for.
_COUNTS: Final = (
    "replicas",
    "minReplicas",
    "numNodes",
    "instances",
    "workers",
    "numReplicas",
    "replicaCount",
    "parallelism",
)
# What decides where a pod goes, and may stand beside a container that has no pod of its own.
_PLACING: Final = (
    "affinity",
    "nodeSelector",
    "priorityClassName",
    "schedulerName",
    "tolerations",
    "topologySpreadConstraints",
)
# How kinds are called that describe pods for other objects, and kinds whose amounts are bounds.
_DEFINITIONS: Final = ("Class", "Config", "Pipeline", "Policy", "Profile", "Runtime", "Task", "Template")
_BOUNDS: Final = ("Cohort", "Flavor", "NodeClaim", "PodGroup", "Pool", "Queue", "Quota")
_OTHERS_AMOUNTS: Final = (
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/gpu.shared",
    "volcano.sh/vgpu-number",
    "volcano.sh/vgpu-memory",
)


@dataclass(slots=True)
class ShapedPods:
    """The pods that were found: ``told`` says so of each template. ``unturned`` is where other GPU amounts stand."""

    groups: list[Group] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    unturned: list[str] = field(default_factory=list)


def pods_by_shape(manifest: Manifest) -> ShapedPods:
    """Return the pods of an object of any kind; none of one that is a template for other objects."""
    found = ShapedPods()
    if manifest.kind.endswith(_DEFINITIONS):
        found.told.append("describes pods for other objects, and makes none itself")
        return found
    search = _ShapeSearch(found)
    for key, value in manifest.body.items():
        if key not in ("apiVersion", "kind", "metadata", "status"):
            search.walk(value, (key,), _PodCount())
    if manifest.kind.endswith(_BOUNDS):
        found.unturned.clear()
    if not found.groups and not found.unturned:
        found.told.append("has no template of pods and asks for no GPU: it makes no pods here")
    return found


@dataclass(frozen=True, slots=True)
class _PodCount:
    """How many pods there are of what stands below, and which fields say so."""

    pods: int = 1
    said_by: tuple[str, ...] = ()

    def within(self, value: Json, steps: tuple[Step, ...]) -> "_PodCount":
        """Return the count below a mapping, which may have a number of its own."""
        for name in _COUNTS:
            number = value.get(name)
            if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MOST_PODS_OF_A_TEMPLATE:
                resumed = " (is 0: judged as if 1)" if number == 0 else ""
                return _PodCount(self.pods * max(number, 1), (*self.said_by, written((*steps, name)) + resumed))
        return self


class _ShapeSearch:
    def __init__(self, found: ShapedPods) -> None:
        self._found = found

    def walk(self, value: Any, steps: tuple[Step, ...], count: _PodCount, above: Json | None = None) -> None:
        """Look for pods in what stands at ``steps``; ``above`` is the mapping that it is in."""
        if isinstance(value, list):
            for number, item in enumerate(value):
                self.walk(item, (*steps, number), count, above)
        if not isinstance(value, dict):
            return
        count = count.within(value, steps)
        if _is_containers(value.get("containers")):
            self._pod_spec(value, steps, count, above or {})
        elif any(_is_requirements(each) for each in value.values()):
            container = _container(value, steps)
            spec = {**_placing(above or {}), **_placing(value), "containers": [container]}
            self._add(spec, {}, steps, count)
            self._walk_rest(value, steps, count, skip=("limits", "requests"))
        else:
            if _names_gpus(value, steps):
                self._found.unturned.append(written(steps))
            self._walk_rest(value, steps, count)

    def _walk_rest(self, value: Json, steps: tuple[Step, ...], count: _PodCount, skip: tuple[str, ...] = ()) -> None:
        for key, item in entries(value):
            if key not in skip and not _is_requirements(item):
                self.walk(item, (*steps, key), count, value)

    def _pod_spec(self, spec: Json, steps: tuple[Step, ...], count: _PodCount, above: Json) -> None:
        """Add the pods of a spec; a container that stands beside the list of containers is one of theirs."""
        known = names_of_fields(_POD)
        kept = {key: item for key, item in spec.items() if key in known and key != "resources"}
        beside = {key: item for key, item in spec.items() if key not in known}
        within = [
            key for key, item in beside.items() if isinstance(item, dict) and any(map(_is_requirements, item.values()))
        ]
        kept["containers"] = [*spec["containers"], *(_container(beside[key], (key,)) for key in within)]
        metadata = above.get("metadata") if steps[-1] == "spec" else None
        template_steps = steps[:-1] if steps[-1] == "spec" and len(steps) > 1 else steps
        self._add(kept, metadata if isinstance(metadata, dict) else {}, template_steps, count)
        for key, item in beside.items():
            if key not in within:
                self.walk(item, (*steps, key), count, spec)

    def _add(self, spec: Json, metadata: Json, steps: tuple[Step, ...], count: _PodCount) -> None:
        kept = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
        name = next(
            (each for each in reversed(steps) if isinstance(each, str) and each not in ("spec", "template")), ""
        )
        self._found.groups.append(
            Group(
                steps, {"metadata": kept, "spec": spec}, count.pods, PodsOfKind(template=written(steps)), name.lower()
            )
        )
        gpus = ", ".join(f"{name}: {amount}" for name, amount in sorted(_gpus(spec).items())) or "no GPU"
        by = f" ({' x '.join(count.said_by)})" if count.said_by else ""
        self._found.told.append(f"{count.pods} pod{'' if count.pods == 1 else 's'} of {written(steps)}{by}, {gpus}")


def _is_containers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _is_requirements(value: Any) -> bool:
    """Return whether a value is the resources of a container that asks for GPUs."""
    if not isinstance(value, dict):
        return False
    bounds = (value.get("limits"), value.get("requests"))
    return any(isinstance(each, dict) and any(map(_is_amount, each.items())) for each in bounds)


def _is_amount(item: tuple[Any, Any]) -> bool:
    """Return whether an entry of a mapping is an amount of GPUs: labels and taints have the same names."""
    name, amount = item
    if not isinstance(name, str) or isinstance(amount, bool) or not isinstance(amount, str | int | float):
        return False
    if name not in (*GPU_RESOURCES, *_OTHERS_AMOUNTS) and not name.startswith(MIG_PREFIX):
        return False
    try:
        return parse_quantity(amount) > 0
    except QuantityError:
        return False


def asks_for_gpus(spec: Json) -> bool:
    """Return whether the containers of a pod's spec name GPUs."""
    return bool(_gpus(spec))


def _names_gpus(value: Json, steps: tuple[Step, ...]) -> bool:
    """Return whether a mapping has an amount of GPUs, by a resource's name, or says ``name`` and amount apart."""
    if any(map(_is_amount, value.items())):
        return True
    if steps[-1] in ("limits", "requests"):
        return any(_is_amount((WHOLE_GPU, value.get(name))) for name in ("gpu", "gpus"))
    others = (each for key, each in value.items() if key != "name")
    return any(_is_amount((value.get("name"), each)) for each in others)


def _container(value: Json, steps: tuple[Step, ...]) -> dict[str, Any]:
    """Return a container of what has a container's resources: all of it if it is one, else what decides on GPUs."""
    key = next((each for each in reversed(steps) if isinstance(each, str)), "main")
    resources = next(each for each in value.values() if _is_requirements(each))
    name = value.get("name")
    whole = {"name": key.lower()[:63], **value}
    if not broken_fields(_CONTAINER, whole):
        return whole
    return {"name": name if isinstance(name, str) and name else key.lower()[:63], "resources": resources}


def _placing(value: Json) -> dict[str, Any]:
    """Return the fields of a mapping that are a pod's and say where it goes."""
    found = {key: value[key] for key in _PLACING if key in value}
    return {
        key: item for key, item in found.items() if not broken_fields(_POD, {"containers": [{"name": "x"}], key: item})
    }


def _gpus(spec: Json) -> dict[str, Any]:
    """Return the GPU amounts that the containers of a pod ask for."""
    found: dict[str, Any] = {}
    for container in spec["containers"]:
        resources = container.get("resources")
        for kind in ("requests", "limits"):
            bounds = resources.get(kind) if isinstance(resources, dict) else None
            found |= dict(filter(_is_amount, bounds.items() if isinstance(bounds, dict) else ()))
    return found
