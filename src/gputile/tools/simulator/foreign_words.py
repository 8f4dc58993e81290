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

_FRACTION: Final = "gpu-fraction"
_MEMORY: Final = "gpu-memory"
_KAI: Final = "KAI or Run:ai"
_GROUPS: Final = {"scheduling.k8s.io/group-name": "Volcano", "pod-group-name": "KAI"}
_CHOICES: Final = (
    *("nvidia.com/use-gputype", "nvidia.com/nouse-gputype", "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
)
_MIB: Final = ("nvidia.com/gpumem", "volcano.sh/vgpu-memory", "volcano.sh/gpu-memory")
_PERCENT: Final = ("nvidia.com/gpucores", "volcano.sh/vgpu-cores")
_NUMBERS: Final = ("volcano.sh/vgpu-number", "volcano.sh/gpu-number")
_OF_GPU: Final = ("nvidia.com/gpumem-percentage",)
_MIN_AVAILABLE: Final = (
    ("spec", "minAvailable"),
    ("spec", "runPolicy", "schedulingPolicy", "minAvailable"),
    ("spec", "gangPolicy", "minMember"),
)
_QUOTAS_OF_REQUESTS: Final = "requests."


def asked_of_others(path: str, pod: Json) -> Iterator[Broken]:
    """Yield annotations by which a pod that asks gputile for no GPU asks another system for one.

    ``path`` is where the pod's fields stand.
    """
    annotations = _mapping(_mapping(pod.get("metadata")).get("annotations"))
    before = f"{path}.metadata" if path else "metadata"
    if any(name in GPU_RESOURCES for name, _ in _limits(pod)):
        return
    for name, unit, remedy in (
        (_FRACTION, "of a GPU", "that part of a GPU's memory"),
        (_MEMORY, "MiB of a GPU", "that memory"),
    ):
        if name in annotations:
            said = f"asks {_KAI} for {str(annotations[name])[:20]} {unit}, and gputile for nothing"
            rule = f"{said}: write limits of {GPU_MEMORY}, in memory units, for {remedy}; or leave the annotation out"
            yield f"{before}.annotations[{shown(name)}]", rule


def _limits(pod: Json) -> Iterator[tuple[str, Any]]:
    for container in _mapping(pod.get("spec")).get("containers", ()):
        yield from _mapping(_mapping(container.get("resources")).get("limits")).items()


def words_of_others(path: str, pod: Json, unit_mib: int) -> Iterator[str]:
    """Yield sentences on words of other systems that gputile passes over, with what to write for it."""
    annotations = _mapping(_mapping(pod.get("metadata")).get("annotations"))
    before = f"{path}." if path else ""
    for name in _CHOICES:
        if name in annotations:
            said = "chooses GPUs for HAMi, and gputile does not read it: choose nodes by the label"
            yield f"{before}metadata.annotations[{shown(name)}] {said} {MODEL_LABEL}"
    for name, system in _GROUPS.items():
        if name in annotations:
            yield f"{before}metadata.annotations[{shown(name)}] is a gang of {system}: {_gang(str(annotations[name]))}"
    spec = _mapping(pod.get("spec"))
    for name in ("workloadRef", "schedulingGroup"):
        if name in spec:
            yield f"{before}spec.{name} is a gang of Kubernetes' own, which gputile does not read: {_gang('NAME')}"
    for name, amount in _limits(pod):
        if remedy := _remedy(name, amount, unit_mib):
            yield f"{before}spec.containers: {name} is not gputile's: write {remedy}"


def gang_of_others(body: Json) -> str:
    """Return a sentence on the gang that a workload is for another scheduler, "" where it is none."""
    for path in _MIN_AVAILABLE:
        found: Any = body
        for step in path:
            found = _mapping(found).get(step)
        if isinstance(found, int) and not isinstance(found, bool) and found > 1:
            name = str(_mapping(body.get("metadata")).get("name") or "NAME")
            return f"{'.'.join(path)}: {found}: gputile places its pods one by one: {_gang(name, found)}"
    return ""


def uncounted_quota(body: Json) -> Iterator[str]:
    """Yield sentences on bounds of a ResourceQuota that Kubernetes takes and never counts."""
    for name in _mapping(_mapping(body.get("spec")).get("hard")):
        resource = name.removeprefix("limits.")
        if (
            "/" in resource
            and not resource.startswith((_QUOTAS_OF_REQUESTS, "count/"))
            and ".storageclass." not in name
        ):
            right = f"{_QUOTAS_OF_REQUESTS}{resource}"
            yield f"spec.hard[{shown(name)}] never counts anything: Kubernetes counts this resource as {right}"


def _gang(name: str, size: int | None = None) -> str:
    labels = f"{GANG_NAME_LABEL}: {name} and {GANG_SIZE_LABEL}: {size or 'SIZE'}"
    return f"for all or none give the pods the labels {labels}"


def _remedy(name: str, amount: Any, unit_mib: int) -> str:
    try:
        count = int(parse_quantity(amount))
    except (QuantityError, TypeError):
        return ""
    if name in _MIB:
        return f"{GPU_MEMORY}: {-(-count // unit_mib)} ({count} MiB in units of {unit_mib} MiB)"
    if name in _PERCENT:
        return f"{GPU_CORE}: {count}"
    if name in _NUMBERS:
        return f"{GPU_MEMORY} for parts of a GPU, or {WHOLE_GPU}: {count}"
    return f"{GPU_MEMORY} in memory units" if name in _OF_GPU else ""


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
