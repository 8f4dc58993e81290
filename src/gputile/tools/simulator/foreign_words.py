"""Recognises what is asked of other systems, HAMi, KAI, Run:ai and Volcano, which gputile ignores.

A pod that asks for a GPU by such words alone would be placed as one without a GPU, so it is an error. Other words
choose which GPU or when, and a note says what to write for gputile.
"""

from collections.abc import Iterator
from typing import Any, Final

from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.well_known import (
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_CORE,
    GPU_MEMORY,
    GPU_RESOURCES,
    MODEL_LABEL,
    WHOLE_GPU,
)
from gputile.api.wording import shown
from gputile.tools.simulator.fields import Broken, Json

_GANG: Final = f"for all or none give the pods the labels {GANG_NAME_LABEL}: {{0}} and {GANG_SIZE_LABEL}: {{1}}"
_ASKED: Final = (
    f"asks KAI or Run:ai for {{}}, and gputile for nothing: write limits of {GPU_MEMORY}, in memory units, for"
)
_CHOICE: Final = f"chooses GPUs for HAMi, and gputile does not read it: choose nodes by the label {MODEL_LABEL}"
_MIB: Final = f"{GPU_MEMORY}: {{units}} ({{count}} MiB in units of {{unit}} MiB)"
_PERCENT: Final = f"{GPU_CORE}: {{count}}"
_NUMBER: Final = f"{GPU_MEMORY} for parts of a GPU, or {WHOLE_GPU}: {{count}}"
# Annotations by which a pod asks for a GPU: the unit of their values, and what to write a limit for.
_ASKING: Final = {
    "gpu-fraction": ("of a GPU", "that part of a GPU's memory"),
    "gpu-memory": ("MiB of a GPU", "that memory"),
}
# What other annotations say; {0} is the value.
_ANNOTATIONS: Final = {
    "nvidia.com/use-gputype": _CHOICE,
    "nvidia.com/nouse-gputype": _CHOICE,
    "nvidia.com/use-gpuuuid": _CHOICE,
    "nvidia.com/nouse-gpuuuid": _CHOICE,
    "scheduling.k8s.io/group-name": f"is a gang of Volcano: {_GANG}",
    "pod-group-name": f"is a gang of KAI: {_GANG}",
}
# What to write for gputile in place of a resource.
_RESOURCES: Final = {
    "nvidia.com/gpumem": _MIB,
    "volcano.sh/vgpu-memory": _MIB,
    "volcano.sh/gpu-memory": _MIB,
    "nvidia.com/gpucores": _PERCENT,
    "volcano.sh/vgpu-cores": _PERCENT,
    "volcano.sh/vgpu-number": _NUMBER,
    "volcano.sh/gpu-number": _NUMBER,
    "nvidia.com/gpumem-percentage": f"{GPU_MEMORY} in memory units",
}
_MIN_AVAILABLE: Final = (
    ("spec", "minAvailable"),
    ("spec", "runPolicy", "schedulingPolicy", "minAvailable"),
    ("spec", "gangPolicy", "minMember"),
)


def asked_of_others(path: str, pod: Json) -> Iterator[Broken]:
    """Yield annotations by which a pod that asks gputile for no GPU asks another system for one.

    ``path`` is where the pod's fields stand.
    """
    if any(name in GPU_RESOURCES for name, _ in _limits(pod)):
        return
    for name, where, value in _annotations(path, pod):
        if name in _ASKING:
            unit, remedy = _ASKING[name]
            yield where, f"{_ASKED.format(f'{value[:20]} {unit}')} {remedy}; or leave the annotation out"


def words_of_others(path: str, pod: Json, unit_mib: int) -> Iterator[str]:
    """Yield sentences on words of other systems that gputile passes over, with what to write for it."""
    before = f"{path}." if path else ""
    for name, where, value in _annotations(path, pod):
        if name in _ANNOTATIONS:
            yield f"{where} {_ANNOTATIONS[name].format(value, 'SIZE')}"
    for name in ("workloadRef", "schedulingGroup"):
        if name in pod["spec"]:
            gang = _GANG.format("NAME", "SIZE")
            yield f"{before}spec.{name} is a gang of Kubernetes' own, which gputile does not read: {gang}"
    for name, amount in _limits(pod):
        if name in _RESOURCES:
            try:
                count = int(parse_quantity(amount))
            except QuantityError:
                continue
            remedy = _RESOURCES[name].format(count=count, units=-(-count // unit_mib), unit=unit_mib)
            yield f"{before}spec.containers: {name} is not gputile's: write {remedy}"


def _annotations(path: str, pod: Json) -> Iterator[tuple[str, str, str]]:
    """Yield annotations of a pod: the name, where it stands, and the value."""
    before = f"{path}." if path else ""
    for name, value in (pod["metadata"].get("annotations") or {}).items():
        yield name, f"{before}metadata.annotations[{shown(name)}]", str(value)


def _limits(pod: Json) -> Iterator[tuple[str, Any]]:
    for container in pod["spec"]["containers"]:
        yield from container.get("resources", {}).get("limits", {}).items()


def gang_of_others(body: Json) -> str:
    """Return a sentence on the gang that a workload is for another scheduler, "" where it is none."""
    for path in _MIN_AVAILABLE:
        found: Any = body
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        if type(found) is int and found > 1:
            gang = _GANG.format(body.get("metadata", {}).get("name") or "NAME", found)
            return f"{'.'.join(path)}: {found}: gputile places its pods one by one: {gang}"
    return ""


def uncounted_quota(body: Json) -> Iterator[str]:
    """Yield sentences on bounds of a ResourceQuota that Kubernetes takes and never counts."""
    for name in body.get("spec", {}).get("hard", {}):
        resource = name.removeprefix("limits.")
        if "/" in resource and not resource.startswith(("requests.", "count/")) and ".storageclass." not in name:
            right = f"requests.{resource}"
            yield f"spec.hard[{shown(name)}] never counts anything: Kubernetes counts this resource as {right}"
