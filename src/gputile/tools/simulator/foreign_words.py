"""Recognizes fields for HAMi, KAI, Koordinator, Run:ai and Volcano, and replaces GPU requests.

A pod must not request a GPU only by such fields, because gputile would place it without a GPU.
For fields that only choose the GPU or the start time, a note says what to write for gputile.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

from gputile.api.core import Container, Pod, ResourceRequirements
from gputile.api.quantity import QuantityError, count_of, parse_quantity
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_CORE,
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    GPU_MODEL,
    GPU_RESOURCES,
    LEGACY_GPU,
    MODEL_LABEL,
    PLACEMENT_LABEL,
    TOPOLOGY_GPU,
    WHOLE_GPU,
)
from gputile.api.wording import shown
from gputile.core.devices.request import PERCENT_STEP
from gputile.tools.simulator.fields import Broken, Json, with_containers

_GANG: Final = (
    f"for all or none give the pods the labels {GANG_NAME_LABEL}: {{0}} and "
    f"{GANG_SIZE_LABEL}: {{1}}"
)
_ASKED: Final = (
    f"asks KAI or Run:ai for {{}}, and gputile for nothing: write limits of "
    f"{GPU_MEMORY}, in memory units, for"
)
_UNREAD: Final = "chooses GPUs for HAMi, and gputile does not read it"
_CHOICE: Final = f"{_UNREAD}: write the label {GPU_MODEL} with a model as the nodes' labels have it"
_AVOIDED: Final = f"{_UNREAD}: avoid nodes by the label {MODEL_LABEL}"
_SINGLE: Final = f"{_UNREAD}: pods do not choose single GPUs"
_OF_NODES: Final = (
    "is HAMi's, and gputile does not read it: nodes decide how their GPUs are shared, by their mode"
)
_POLICY: Final = (
    "is HAMi's, and gputile does not read it: set placement in the configuration, or "
    f"{PLACEMENT_LABEL} on nodes"
)


class ForeignAmount(StrEnum):
    """The unit of another system's resource. Each value states what to write for gputile."""

    MIB = f"{GPU_MEMORY}: {{units}} ({{count}} MiB in units of {{unit}} MiB)"
    PERCENT_OF_MEMORY = f"{GPU_MEMORY} in memory units"
    PERCENT_OF_COMPUTE = f"{GPU_CORE}: {{count}}, beside {GPU_MEMORY}"
    BYTES = f"{GPU_MEMORY}: this memory, in units of {{unit}} MiB"
    GPUS = f"{GPU_MEMORY} for parts of a GPU, or {WHOLE_GPU}: {{count}}"


FOREIGN_RESOURCES: Final = {
    "nvidia.com/gpumem": ForeignAmount.MIB,
    "volcano.sh/vgpu-memory": ForeignAmount.MIB,
    "volcano.sh/gpu-memory": ForeignAmount.MIB,
    "nvidia.com/gpumem-percentage": ForeignAmount.PERCENT_OF_MEMORY,
    "volcano.sh/vgpu-memory-percentage": ForeignAmount.PERCENT_OF_MEMORY,
    "nvidia.com/gpucores": ForeignAmount.PERCENT_OF_COMPUTE,
    "volcano.sh/vgpu-cores": ForeignAmount.PERCENT_OF_COMPUTE,
    "volcano.sh/vgpu-number": ForeignAmount.GPUS,
    "volcano.sh/gpu-number": ForeignAmount.GPUS,
    "nvidia.com/gpu.shared": ForeignAmount.GPUS,
    "koordinator.sh/gpu": ForeignAmount.PERCENT_OF_MEMORY,
    "koordinator.sh/gpu-memory": ForeignAmount.BYTES,
    "koordinator.sh/gpu-memory-ratio": ForeignAmount.PERCENT_OF_MEMORY,
    "koordinator.sh/gpu-core": ForeignAmount.PERCENT_OF_COMPUTE,
    "koordinator.sh/gpu-shared": ForeignAmount.GPUS,
    "koordinator.sh/gpu.shared": ForeignAmount.GPUS,
}
SHARED_GPU: Final = "nvidia.com/gpu.shared"  # NVIDIA's other name for time-sliced GPUs
_WHOLE: Final = (WHOLE_GPU, LEGACY_GPU, TOPOLOGY_GPU, SHARED_GPU)
# Node resources that count GPUs. Names of GPUs for virtual machines start with a capital letter.
GPU_COUNTERS: Final = re.compile(r"nvidia\.com/(gpu|mig-|[A-Z])|(koordinator|volcano)\.sh/v?gpu")
# Resources that request GPUs on nodes of gputile, NVIDIA's device plugin and HAMi.
GPU_NAMES: Final = {*GPU_RESOURCES, *(name for name in FOREIGN_RESOURCES if "nvidia" in name)}
# Annotations that request a GPU. The texts are for messages. They state the unit of the value, and
# the memory to request from gputile.
KAI_FRACTION: Final = "gpu-fraction"
KAI_MEMORY: Final = "gpu-memory"
ASKING: Final = {
    KAI_FRACTION: ("of a GPU", "that part of a GPU's memory"),
    KAI_MEMORY: ("MiB of a GPU", "that memory"),
}
# The messages for other annotations. {0} is the value, {1} the size of a gang.
_ANNOTATIONS: Final = {
    "nvidia.com/use-gputype": _CHOICE,
    "nvidia.com/nouse-gputype": _AVOIDED,
    "nvidia.com/use-gpuuuid": _SINGLE,
    "nvidia.com/nouse-gpuuuid": _SINGLE,
    "nvidia.com/use-gpuindexes": _SINGLE,
    "nvidia.com/nouse-gpuindexes": _SINGLE,
    "nvidia.com/vgpu-mode": _OF_NODES,
    "hami.io/gpu-scheduler-policy": _POLICY,
    "hami.io/node-scheduler-policy": _POLICY,
    "scheduling.k8s.io/group-name": f"is a gang of Volcano: {_GANG}",
    "pod-group-name": f"is a gang of KAI: {_GANG}",
}
_MIN_AVAILABLE: Final = (
    ("spec", "minAvailable"),
    ("spec", "runPolicy", "schedulingPolicy", "minAvailable"),
    ("spec", "gangPolicy", "minMember"),
    ("spec", "jobTemplate", "spec", "minAvailable"),
    ("metadata", "annotations", "kai.scheduler/min-member"),
)
_VOLCANO_JOB: Final = ("batch.volcano.sh/v1alpha1", "Job")


def gpu_field(pod: Pod, claims: bool) -> str:
    """Return the annotation or resource by which a pod requests another system's GPUs, or "".

    If another system serves ``claims``, the result may also be "resourceClaims". The result is ""
    for a pod that has ended, or that also requests gputile's GPUs.
    """
    limits = (name for each in pod.spec.containers for name in each.resources.limits)
    names = {*pod.metadata.annotations, *limits}
    if pod.finished or names & {ALLOCATION_ANNOTATION, *GPU_NAMES}:
        return ""
    by_claims = "resourceClaims" if claims and pod.spec.resource_claims else ""
    return next((name for name in (*ASKING, *FOREIGN_RESOURCES) if name in names), by_claims)


def foreign_requests(path: str, pod: Json) -> Iterator[Broken]:
    """Yield the annotations that request GPUs of another system.

    There are none if the pod also requests gputile's GPUs. ``path`` is the pod's path in an object.
    """
    if any(name in GPU_RESOURCES for name, _ in _limits(pod)):
        return
    for name, where, value in _annotations(path, pod):
        if name in ASKING:
            unit, remedy = ASKING[name]
            rule = _ASKED.format(f"{value[:20]} {unit}")
            yield where, f"{rule} {remedy}; or leave the annotation out"


def foreign_notes(path: str, pod: Json, unit_mib: int, more: str = "") -> Iterator[str]:
    """Yield a sentence for each field of another system, with what to write instead.

    ``more`` is appended to sentences on resources.
    """
    before = f"{path}." if path else ""
    for name, where, value in _annotations(path, pod):
        if name in _ANNOTATIONS:
            yield f"{where} {_ANNOTATIONS[name].format(value, 'SIZE')}"
    for name in ("workloadRef", "schedulingGroup"):
        if name in pod["spec"]:
            gang = _GANG.format("NAME", "SIZE")
            yield (
                f"{before}spec.{name} is a gang of Kubernetes' own, which gputile does not read: "
                f"{gang}"
            )
    for name, amount in _limits(pod):
        if name in FOREIGN_RESOURCES:
            try:
                count = int(parse_quantity(amount))
            except QuantityError:
                continue
            if FOREIGN_RESOURCES[name] is ForeignAmount.PERCENT_OF_COMPUTE:
                count = -(-count // PERCENT_STEP) * PERCENT_STEP
            remedy = FOREIGN_RESOURCES[name].format(
                count=count, units=-(-count // unit_mib), unit=unit_mib
            )
            yield f"{before}spec.containers: {name} is not gputile's: write {remedy}{more}"


def _annotations(path: str, pod: Json) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the path and the value of each annotation of a pod."""
    before = f"{path}." if path else ""
    for name, value in (pod["metadata"].get("annotations") or {}).items():
        yield name, f"{before}metadata.annotations[{shown(name)}]", str(value)


def _limits(pod: Json) -> Iterator[tuple[str, Any]]:
    for container in pod["spec"]["containers"]:
        yield from container.get("resources", {}).get("limits", {}).items()


def foreign_gang(body: Json) -> tuple[str, int] | None:
    """Return the field that states a gang's size to another scheduler, and the size, or None."""
    for path in _MIN_AVAILABLE:
        found: Any = body
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        number = int(found) if isinstance(found, str) and found.isdecimal() else found
        if type(number) is int:
            return (".".join(path), number) if number > 1 else None
    if (body.get("apiVersion"), body.get("kind")) == _VOLCANO_JOB:
        tasks = body.get("spec", {}).get("tasks")
        replicas = [each.get("replicas", 1) for each in tasks or () if isinstance(each, dict)]
        if all(type(each) is int for each in replicas) and sum(replicas) > 1:
            return "spec.minAvailable (absent, so all pods)", sum(replicas)
    return None


def foreign_gang_note(body: Json) -> str:
    """Return a sentence if another scheduler treats a workload as a gang but gputile does not."""
    gang = foreign_gang(body)
    if gang is None or f"'{GANG_NAME_LABEL}'" in str(body):  # the pods have gputile's labels
        return ""
    labels = _GANG.format(body.get("metadata", {}).get("name") or "NAME", gang[1])
    return f"{gang[0]}: {gang[1]}: gputile places its pods one by one: {labels}"


def uncounted_quota(body: Json) -> Iterator[str]:
    """Yield a sentence for each entry of a ResourceQuota that a simulation does not enforce.

    These are quotas for GPUs, and quotas for extended resources without the prefix ``requests.``,
    which Kubernetes does not enforce either.
    """
    for name in body.get("spec", {}).get("hard", {}):
        resource = name.removeprefix("limits.")
        if name.removeprefix("requests.") in GPU_NAMES and name.startswith("requests."):
            yield f"spec.hard[{shown(name)}] is not counted here; a cluster refuses pods beyond it"
        elif (
            "/" in resource
            and not resource.startswith(("requests.", "count/"))
            and "class." not in name  # not a quota for a StorageClass or DeviceClass
        ):
            right = f"requests.{resource}"
            yield (
                f"spec.hard[{shown(name)}] never counts anything: Kubernetes counts this "
                f"resource as {right}"
            )


def with_shares(pod: Pod, gpus: int, units: int, percent: int) -> Pod:
    """Replace a pod's GPU request with a request for a share of each of ``gpus`` GPUs.

    Each share has ``units`` of memory and ``percent`` of compute.
    """
    wanted: dict[str, Any] = {GPU_MEMORY: gpus * units} | (
        {GPU_CORE: gpus * percent} if percent else {}
    )
    changed = with_gpus(pod, wanted)
    labels = {key: text for key, text in pod.metadata.labels.items() if key != GPU_COUNT_LABEL}
    if gpus > 1:
        labels[GPU_COUNT_LABEL] = str(gpus)
    return msgspec.structs.replace(
        changed, metadata=msgspec.structs.replace(changed.metadata, labels=labels)
    )


def _with_amounts(container: Container, wanted: dict[str, Any], kept: str = "") -> Container:
    limits, requests = (
        {name: each[name] for name in each if name not in GPU_NAMES or name == kept} | wanted
        for each in (container.resources.limits, container.resources.requests)
    )
    return msgspec.structs.replace(container, resources=ResourceRequirements(limits, requests))


def with_gpus(pod: Pod, wanted: dict[str, Any]) -> Pod:
    """Replace all GPU requests of a pod with ``wanted``.

    The first container that requests GPUs gets ``wanted``. If there is none, nothing changes.
    """
    left = [wanted]

    def changed(container: Container) -> Container:
        resources = container.resources
        if GPU_NAMES.isdisjoint((*resources.limits, *resources.requests)):
            return container
        return _with_amounts(container, left.pop() if left else {})

    return with_containers(pod, changed)


def with_whole_gpus(pod: Pod, resource: str, kept: str = "") -> Pod:
    """Replace requests for whole or time-sliced GPUs, except for ``kept``, with ``resource``."""

    def changed(container: Container) -> Container:
        counts = (count_of(container.resources.limits, name) for name in _WHOLE)
        count = next(filter(None, counts), 0)
        return _with_amounts(container, {resource: count}, kept) if count else container

    return with_containers(pod, changed)
