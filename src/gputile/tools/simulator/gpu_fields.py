"""Recognizes containers and GPU requests in the fields of custom resources.

These fields may have other names and types than in a Kubernetes pod.
"""

import re
from typing import Any, Final, TypeGuard

from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.well_known import GPU_RESOURCES, MIG_PREFIX, WHOLE_GPU
from gputile.tools.simulator.fields import Json, broken_fields
from gputile.tools.simulator.foreign_words import FOREIGN_RESOURCES

POD_SPEC: Final = "core.v1.PodSpec"
_CONTAINER: Final = "core.v1.Container"
_WHOLE_GPUS: Final = ("gpu", "gpus")  # their names in kinds that use no Kubernetes resource names
_AMOUNTS: Final = (*_WHOLE_GPUS, "cpu", "memory")
# The names of fields that contain a number of GPUs or an amount of their memory, such as
# requestGPU, gpuDevices, gpuMemory, num_gpus and gpusPerNode.
_NUMBER: Final = re.compile(
    "(?i)(request|limit|num)?_?gpus?_?"
    "(count|devices|memory|number|request|limit|portion(request)?|per_?(node|pod|replica|worker))?"
)
# Fields of DRA, KubeVirt and KubeAI that may name a type of GPU.
_NAMES: Final = ("deviceClassName", "deviceName", "resourceProfile")
# Fields that name claims outside of a pod spec. The claims of a pod spec are read with the spec.
_CLAIMS: Final = frozenset({"resourceClaimName", "resourceClaimTemplateName"})
# PodSpec fields that restrict the node. They may also be siblings of a container that is not part
# of a pod spec.
_PLACING: Final = (
    "affinity",
    "nodeSelector",
    "priorityClassName",
    "schedulerName",
    "tolerations",
    "topologySpreadConstraints",
)


def is_containers(value: Any) -> TypeGuard[list[Json]]:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def name_of(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""


def gpu_requirements(key: Any, value: Any) -> dict[str, Json] | None:
    """Convert a value that requests GPUs to a container's ``resources``. Return None otherwise.

    Custom resources may name whole GPUs ``gpu`` or ``gpus``, write amounts directly below the key
    ``resources``, or use a mapping with ``name`` and ``quantity``.
    """
    if not isinstance(value, dict):
        return None
    found = {
        kind: value[kind] for kind in ("limits", "requests") if isinstance(value.get(kind), dict)
    }
    if not found and key == "resources":
        amounts = (each for each in value.items() if each[0] in _AMOUNTS or _is_amount(each))
        found = {"limits": dict(amounts)}
    if not found and value.keys() == {"name", "quantity"}:  # the GPUs of a Spark executor
        found = {"limits": {name_of(value): value["quantity"]}}
    written: dict[str, Json] = {
        kind: {
            WHOLE_GPU if name in _WHOLE_GPUS else name: amount
            for name, amount in bounds.items()
            if not isinstance(amount, dict)
        }
        for kind, bounds in found.items()
    }
    has_gpus = any(_is_amount(item) for bounds in written.values() for item in bounds.items())
    return written if has_gpus else None


def _is_amount(item: tuple[Any, Any]) -> bool:
    """Return whether a mapping's entry is an amount of GPUs.

    A label or taint may have the name of a GPU resource, but its value is not a positive amount.
    """
    name, amount = item
    if not isinstance(name, str) or type(amount) not in (str, int, float):
        return False
    if name not in (*GPU_RESOURCES, *FOREIGN_RESOURCES) and not name.startswith(MIG_PREFIX):
        return False
    try:
        return parse_quantity(amount) > 0
    except QuantityError:
        return False


def asks_for_gpus(spec: Json) -> bool:
    """Return whether a pod's spec requests GPUs, or has claims, which may be for GPUs."""
    return bool(gpu_amounts(spec) or spec.get("resourceClaims"))


def field_with_gpus(value: Json) -> str | None:
    """Return the field of a mapping that requests GPUs, or None if no field does.

    The field contains an amount, a device, a profile or a claim.
    """
    # A group of pods may be named "gpu" too. Its number is ``replicas``, not an amount of GPUs.
    is_gpu = name_of(value).lower() in _WHOLE_GPUS
    for key, each in value.items():
        named = key in _NAMES and re.search("gpu|nvidia", str(each).lower())
        apart = WHOLE_GPU if is_gpu and key in ("quantity", "value") else name_of(value)
        number = each.get("value") if isinstance(each, dict) else each  # Run:ai writes {value: 1}
        name = WHOLE_GPU if _NUMBER.fullmatch(str(key)) else key
        is_amount = _is_amount((name, number)) or (key != "name" and _is_amount((apart, each)))
        if key in _CLAIMS or named or is_amount:
            return str(key)
    return None


def container_of(value: Json, steps: tuple[str | int, ...]) -> dict[str, Any]:
    """Build a container from a mapping that requests GPUs at the path ``steps``.

    If the mapping is invalid as a container, only its name and resources are used.
    """
    key = next((each for each in reversed(steps) if isinstance(each, str)), "main")
    where, resources = next(
        (key, found) for key, each in value.items() if (found := gpu_requirements(key, each))
    )
    name = value.get("name")
    whole = {"name": key.lower()[:63], **value, where: resources}
    if not broken_fields(_CONTAINER, whole):
        return whole
    return {
        "name": name if isinstance(name, str) and name else key.lower()[:63],
        "resources": resources,
    }


def placing_fields(value: Json) -> dict[str, Any]:
    """Return a mapping's fields that are valid in a PodSpec and restrict where the pod can run."""
    found = {key: value[key] for key in _PLACING if key in value}
    return {
        key: item
        for key, item in found.items()
        if not broken_fields(POD_SPEC, {"containers": [{"name": "x"}], key: item})
    }


def gpu_amounts(spec: Json) -> dict[str, Any]:
    """Return the amounts of GPU resources that a pod's containers request, by resource name."""
    found: dict[str, Any] = {}
    initial = spec.get("initContainers")
    for container in (*(initial if is_containers(initial) else ()), *spec["containers"]):
        resources = container.get("resources")
        for kind in ("requests", "limits"):
            bounds = resources.get(kind) if isinstance(resources, dict) else None
            found |= dict(filter(_is_amount, bounds.items() if isinstance(bounds, dict) else ()))
    return found
