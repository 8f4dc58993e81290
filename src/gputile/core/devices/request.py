"""Parses the GPU request of a pod into a normal form.

GPU resources are set in limits, as whole numbers. A request, if set, equals its limit (Kubernetes,
"Schedule GPUs"). A pod requests one kind of GPU resource. Compute is requested in steps of 5
percent, together with memory (ACK). Init containers and sidecars count as in Kubernetes (KEP-753).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from gputile.api.core import Container, Pod
from gputile.api.quantity import MIB, QuantityError, decimal, parse_count
from gputile.api.well_known import (
    GPU_CORE,
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    GPU_MODEL,
    GPU_RESOURCES,
    ISOLATION,
    LEGACY_GPU,
    MEMORY_UNIT_ANNOTATION,
    MIG_PREFIX,
    MODEL_COUNT_PREFIX,
    SMALLEST_UNIT_MIB,
    TOPOLOGY_GPU,
    WHOLE_GPU,
)
from gputile.api.wording import shortened
from gputile.core.devices.inventory import MOST_GPUS, MOST_MIB, MOST_REPLICAS, model_label_value
from gputile.core.kube_predicates.pod_requests import NO_HOST_RESOURCES, HostResources, host_request

PERCENT_STEP = 5
# The most containers of a pod. Parsing more would delay other pods, and no kubelet starts more.
MOST_CONTAINERS = 1024
MOST_SHARED_GPUS = 16  # per pod, since the limits file of a container has 16 entries
MOST_PERCENT = 100  # of each GPU (M8)


class RequestError(ValueError):
    """A GPU request can never be served. The message names the field, the rule and the remedy.

    Long messages are truncated, since a message is repeated for each node.
    """

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text))


class RequestKind(Enum):
    """The kind of GPU resource that a pod requests. The value is the resource's name."""

    SHARED = GPU_MEMORY
    WHOLE = WHOLE_GPU
    TOPOLOGY = TOPOLOGY_GPU


class Phase(Enum):
    """The kind of a container, which determines when the container runs."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container requests.

    ``units`` and ``percent`` are the amounts on all GPUs of the pod together. ``gpus`` is the
    number of whole GPUs.
    """

    name: str
    phase: Phase
    units: int = 0
    percent: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a request that decides where the pod fits. Equal shapes fit the same nodes."""

    kind: RequestKind
    gpus: int  # the number of GPUs, or of time slices of GPUs
    mib: int = 0  # on each GPU, 0 for whole GPUs
    percent: int = 0  # on each GPU, from 0 to 100
    trust_group: str = ""  # the group that may share a GPU without isolation (G5)
    unit_mib: int = 0  # the unit of the pod's gpu-mem, 0 for whole GPUs
    by_claims: bool = False  # the request is a ResourceClaim, for nodes that offer GPUs by claims
    containers: tuple[ContainerRequest, ...] = ()  # only if several request whole GPUs
    models: frozenset[str] = frozenset()  # suitable GPU models, as label values. Empty means all
    isolated: bool = False  # only GPUs with limited memory are suitable


@dataclass(frozen=True, slots=True)
class Request:
    """A pod's GPU request in its normal form. ``unit_mib`` is the size of a memory unit in MiB.

    ``host`` is the pod's request for CPU and memory. It affects the scores of nodes, but not
    which nodes fit.
    """

    shape: Shape
    unit_mib: int
    containers: tuple[ContainerRequest, ...]
    host: HostResources = NO_HOST_RESOURCES

    @property
    def units(self) -> int:
        """The number of memory units that the pod requests in total, or 0 for whole GPUs."""
        return self.shape.mib * self.shape.gpus // self.unit_mib


def parse_request(
    pod: Pod, unit_mib: int, trust_group: Callable[[Pod], str] = lambda pod: pod.metadata.namespace
) -> Request | None:
    """Parse the GPU request of ``pod``. Return None if the pod requests no GPU.

    ``unit_mib`` is the cluster's memory unit. It applies to pods without a unit set at admission.

    Raises:
        RequestError: the request breaks a rule.
    """
    count = len(pod.spec.init_containers) + len(pod.spec.containers)
    if count > MOST_CONTAINERS:
        raise RequestError(
            f"the pod has {count} containers, more than the {MOST_CONTAINERS} that gputile reads"
        )
    asked = tuple(_container_requests(pod))
    kinds = {kind for _, kind in asked}
    if not kinds:
        return None
    if len(kinds) > 1:
        names = " and ".join(sorted(kind.value for kind in kinds))
        raise RequestError(
            f"the pod asks for {names}; a pod can use one kind of GPU resource: remove the other"
        )
    kind, containers = kinds.pop(), tuple(container for container, _ in asked)
    models = _models(pod)
    if kind is not RequestKind.SHARED:
        gpus = effective(containers, lambda container: container.gpus)
        if gpus > MOST_GPUS:
            raise RequestError(
                f"{kind.value}: {gpus} GPUs are more than a node can have ({MOST_GPUS})"
            )
        # Pods and containers may share whole GPUs by time-slicing, but never a set by topology.
        whole, isolated = kind is RequestKind.WHOLE, _is_isolated(pod)
        group = trust_group(pod) if whole else ""
        several = containers if whole and 1 < len(containers) <= MOST_REPLICAS else ()
        shape = Shape(
            kind, gpus, trust_group=group, containers=several, models=models, isolated=isolated
        )
        return Request(shape, unit_mib, containers, host_request(pod))
    gpus, unit = _gpu_count(pod), _pod_unit(pod, unit_mib)
    for container in containers:
        _check_spread(container, gpus)
    mib = effective(containers, lambda container: container.units) * unit // gpus
    if mib > MOST_MIB:
        count = mib // unit
        meant = math.ceil(count * gpus / MIB)  # the MiB if the amount is in bytes, such as 2Gi
        may_be_bytes = count * gpus >= MIB and meant <= MOST_MIB
        remedy = f"; for {meant} MiB write {math.ceil(meant / unit)}" if may_be_bytes else ""
        raise RequestError(
            f"{GPU_MEMORY} counts units of {unit} MiB: {count} of them on one GPU are more than "
            f"any GPU has{remedy}"
        )
    percent = effective(containers, lambda container: container.percent) // gpus
    if percent > MOST_PERCENT:
        raise RequestError(
            f"the pod asks for {percent} percent of one GPU ({GPU_CORE}), and a GPU has "
            f"{MOST_PERCENT}: ask for less, or for more GPUs by the label {GPU_COUNT_LABEL}"
        )
    isolated = _is_isolated(pod, percent)
    group = trust_group(pod)
    shape = Shape(kind, gpus, mib, percent, group, unit, models=models, isolated=isolated)
    return Request(shape, unit, containers, host_request(pod))


def effective(
    containers: Iterable[ContainerRequest], amount: Callable[[ContainerRequest], int]
) -> int:
    """Return the largest total ``amount`` of the containers that run at the same time.

    Sidecars run until the end. An init container runs together with the sidecars started before it.
    The app containers run together with all sidecars. See KEP-753, "Resources calculation for
    scheduling and pod admission".
    """
    peak = sidecars = apps = 0
    for container in containers:
        if container.phase is Phase.APP:
            apps += amount(container)
        elif container.phase is Phase.SIDECAR:
            sidecars += amount(container)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + amount(container))
    return max(peak, sidecars + apps)


def _container_requests(pod: Pod) -> Iterator[tuple[ContainerRequest, RequestKind]]:
    for container in pod.spec.init_containers:
        phase = Phase.SIDECAR if container.restart_policy == "Always" else Phase.INIT
        yield from _container_request(container, phase, "initContainers")
    for container in pod.spec.containers:
        yield from _container_request(container, Phase.APP, "containers")


def _container_request(
    container: Container, phase: Phase, field: str
) -> Iterator[tuple[ContainerRequest, RequestKind]]:
    if not (container.resources.limits or container.resources.requests):
        return
    where = f"spec.{field}[{container.name}].resources"
    counts = {name: count for name in GPU_RESOURCES if (count := _limit(container, name, where))}
    memory, percent = counts.get(GPU_MEMORY, 0), counts.get(GPU_CORE, 0)
    whole, legacy = counts.get(WHOLE_GPU, 0), counts.get(LEGACY_GPU, 0)
    topology = counts.get(TOPOLOGY_GPU, 0)
    if memory and not percent and GPU_CORE in container.resources.limits:
        raise RequestError(
            f"{where}.limits: {GPU_CORE} is 0: ask for {PERCENT_STEP} or more, or remove it"
        )
    if percent and not memory:
        raise RequestError(f"{where}.limits: {GPU_CORE} requires {GPU_MEMORY}: add {GPU_MEMORY}")
    if percent % PERCENT_STEP:
        low = percent - percent % PERCENT_STEP
        nearest = [low] if low else []
        if low % MOST_PERCENT or not low:  # more than 100 percent would exceed a GPU
            nearest.append(low + PERCENT_STEP)
        remedy = " or ".join(map(str, nearest))
        raise RequestError(
            f"{where}.limits: {GPU_CORE} is {percent}, not a multiple of {PERCENT_STEP}: ask for "
            f"{remedy}"
        )
    if whole and legacy:
        raise RequestError(
            f"{where}.limits: {LEGACY_GPU} is the old name of {WHOLE_GPU}: remove one of the two"
        )
    if memory:
        yield ContainerRequest(container.name, phase, memory, percent), RequestKind.SHARED
    if whole or legacy:
        yield ContainerRequest(container.name, phase, gpus=whole or legacy), RequestKind.WHOLE
    if topology:
        yield ContainerRequest(container.name, phase, gpus=topology), RequestKind.TOPOLOGY


def _limit(container: Container, name: str, where: str) -> int:
    limits, requests = container.resources.limits, container.resources.requests
    if name not in limits and name not in requests:
        return 0
    try:
        limit = parse_count(limits[name]) if name in limits else None
        request = parse_count(requests[name]) if name in requests else limit
    except QuantityError as error:
        raise RequestError(
            f"{where}: {name}: {error}; a GPU resource is a whole number, zero or more"
        ) from error
    if limit is None:
        raise RequestError(f"{where}: {name} has a request and no limit: set it in limits")
    if request != limit:
        raise RequestError(
            f"{where}: {name} requests {request} and limits {limit}: the two must be equal"
        )
    return limit


def _gpu_count(pod: Pod) -> int:
    text = pod.metadata.labels.get(GPU_COUNT_LABEL)
    if text is None:
        return 1
    count = decimal(text, 3)
    if not 1 <= count <= MOST_SHARED_GPUS:
        raise RequestError(
            f"metadata.labels[{GPU_COUNT_LABEL}] is {text[:40]!r}, not a number of GPUs from 1 to "
            f"{MOST_SHARED_GPUS}: correct or remove the label"
        )
    return count


def _models(pod: Pod) -> frozenset[str]:
    """Return the GPU models that suit the pod, as label values. An empty set means all models.

    If the pod names no model, the models come from node labels that its node selector or affinity
    requires. The pod gets only GPUs of these models, even on a node that also has others.
    """
    named = pod.metadata.annotations.get(GPU_MODEL) or pod.metadata.labels.get(GPU_MODEL)
    if named:
        return frozenset({model_label_value(named)})
    selected = _models_in(pod.spec.node_selector)
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if selected or affinity is None or affinity.required is None:
        return selected
    terms = [
        _models_in(
            each.key
            for each in term.match_expressions
            if each.operator not in ("DoesNotExist", "NotIn")
        )
        for term in affinity.required.node_selector_terms
    ]
    return frozenset().union(*terms) if all(terms) else frozenset()


def _models_in(labels: Iterable[str]) -> frozenset[str]:
    return frozenset(
        label.removeprefix(MODEL_COUNT_PREFIX)
        for label in labels
        if label.startswith(MODEL_COUNT_PREFIX)
    )


def _is_isolated(pod: Pod, percent: int = MOST_PERCENT) -> bool:
    """Return whether a pod that requests ``percent`` of compute needs GPUs with isolated memory.

    The result is False for bound pods, so that a later change cannot make a request invalid.
    """
    text = pod.metadata.annotations.get(ISOLATION) or pod.metadata.labels.get(ISOLATION)
    if not text or text == "none" or pod.spec.node_name:
        return False
    asked = tuple(sorted({part.strip() for part in text[:40].split(",")}, reverse=True))
    if asked not in (("memory",), ("memory", "compute")):
        raise RequestError(
            f"{ISOLATION} is {text[:40]!r}: write memory, or memory,compute, or none"
        )
    if "compute" in asked and not percent:
        raise RequestError(
            f"{ISOLATION} asks for isolated compute, but the pod requests no compute: add "
            f"{GPU_CORE}, or write memory"
        )
    return True


def _pod_unit(pod: Pod, default: int) -> int:
    text = pod.metadata.annotations.get(MEMORY_UNIT_ANNOTATION)
    if text is None:
        return default
    unit = decimal(text, 8)
    if not SMALLEST_UNIT_MIB <= unit <= MOST_MIB:
        raise RequestError(
            f"metadata.annotations[{MEMORY_UNIT_ANNOTATION}] is {text[:40]!r}, "
            f"not a unit of {SMALLEST_UNIT_MIB} MiB or more: remove the annotation"
        )
    return unit


def _check_spread(container: ContainerRequest, gpus: int) -> None:
    for name, amount in ((GPU_MEMORY, container.units), (GPU_CORE, container.percent)):
        if amount % gpus:
            low = amount - amount % gpus
            remedy = f"{low} or {low + gpus}" if low else f"{gpus}"
            raise RequestError(
                f"container {container.name}: {name} is {amount}, which cannot be divided evenly "
                f"among {gpus} GPUs ({GPU_COUNT_LABEL}): ask for {remedy}"
            )


def requests_gpu(pod: Pod) -> bool:
    """Return whether a container requests a GPU, a part of a GPU, or a MIG instance.

    "0" is no request. An amount that is not a number counts as a request.
    """
    resources = (container.resources for container in containers(pod))
    return requests_gputile_gpu(pod) or any(
        name.startswith(MIG_PREFIX) and not _is_zero(amount)
        for each in resources
        for name, amount in (*each.limits.items(), *each.requests.items())
    )


def requests_gputile_gpu(pod: Pod) -> bool:
    """Return whether gputile chooses the pod's GPUs. It does not choose MIG instances."""
    return any(True for container in containers(pod) for _ in gpu_resources_of(container))


def requests_resource(pod: Pod, resource: str) -> bool:
    return any(resource in gpu_resources_of(container) for container in containers(pod))


def gpu_resources_of(container: Container) -> Iterator[str]:
    """Yield the GPU resources of gputile that a container requests."""
    if not (container.resources.limits or container.resources.requests):
        return
    for name in GPU_RESOURCES:
        amounts = (container.resources.limits.get(name), container.resources.requests.get(name))
        if any(amount is not None and not _is_zero(amount) for amount in amounts):
            yield name


def containers(pod: Pod) -> list[Container]:
    """Return the containers that may request resources, in the order in which they start."""
    return [*pod.spec.init_containers, *pod.spec.containers]


def _is_zero(amount: str | int | float) -> bool:
    try:
        return parse_count(amount) == 0
    except QuantityError:
        return False
