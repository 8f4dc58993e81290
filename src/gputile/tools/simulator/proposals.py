"""Builds the pods and nodes of remedies: a smaller pod, a pod created anew, a node that is added."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from gputile.api.affinity import NodeSelectorRequirement
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import (
    Container,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    ResourceList,
    ResourceRequirements,
    Taint,
)
from gputile.api.quantity import count_of, parse_mib
from gputile.api.well_known import (
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    MEMORY_UNIT_ANNOTATION,
    MODE_LABEL,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_MEMORY_LABEL,
    WHOLE_GPU,
    Mode,
)
from gputile.core.admission.completion import DEFAULT_SCHEDULER, tolerate
from gputile.core.admission.gpu_requests import is_decided
from gputile.core.admission.legacy_forms import rewrite
from gputile.core.admission.verdict import apply_patch
from gputile.core.devices.inventory import MOST_GPUS, MOST_MIB, Gpu, Inventory, encode_inventory, resources_for_mode
from gputile.core.devices.request import Request, RequestError, RequestKind, parse_request
from gputile.core.kube_predicates.pod_requests import CPU, Amounts

_COMING = "a-node-that-comes"
_HOST_LABEL = "kubernetes.io/hostname"


def asking_less(pod: Pod, resource: str, step: int, enough: Callable[[Pod], bool]) -> Pod | None:
    """Return ``pod`` with the largest amount of ``resource`` in each container that is still small ``enough``.

    Amounts are multiples of ``step``. None if even one step in each container is too much.
    """
    asked = [count for container in _containers(pod) if (count := count_of(container.resources.limits, resource))]
    best, low, high = None, 1, max(asked, default=0) // step
    while low <= high:
        middle = (low + high) // 2
        capped = _capped(pod, resource, middle * step)
        if enough(capped):
            best, low = capped, middle + 1
        else:
            high = middle - 1
    return best


def created_anew(pod: Pod, configuration: Configuration) -> Pod | None:
    """Return ``pod`` as admission would store it today, asking for as much memory; None where nothing would differ.

    A pod differs that was created while gputile's webhook was not there, or under another memory unit.
    """
    rewriting = rewrite(pod)
    tolerate(pod, rewriting)
    found = pod
    if rewriting.operations:
        found = msgspec.convert(apply_patch(rewriting.operations, msgspec.to_builtins(pod)), Pod)
    found = _in_unit(found, configuration)
    if overlooked(pod, configuration):
        spec = msgspec.structs.replace(found.spec, scheduler_name=configuration.scheduler_name)
        found = msgspec.structs.replace(found, spec=spec)
    return None if found is pod else found


def overlooked(pod: Pod, configuration: Configuration) -> bool:
    """Return whether admission would have given the pod to gputile's own scheduler, and has not."""
    ours, named = configuration.scheduler_name, pod.spec.scheduler_name or DEFAULT_SCHEDULER
    return bool(ours) and named == DEFAULT_SCHEDULER != ours and is_decided(pod)


def coming_node(pod: Pod, request: Request, mode: Mode, configuration: Configuration, needs: Amounts) -> Node | None:
    """Return an empty node of a mode, just large enough for ``pod``, with the labels that the pod demands.

    ``needs`` is what the pod takes of a node, cpu in thousandths. The node has the taint of GPU nodes if the cluster
    sets it. None if no labels are found that the pod accepts.
    """
    demanded = demanded_labels(pod)
    if demanded is None:
        return None
    unit = configuration.unit_mib
    try:
        count = int(demanded.get(NODE_GPU_COUNT_LABEL, request.shape.gpus))
        size = parse_mib(demanded[NODE_GPU_MEMORY_LABEL]) if NODE_GPU_MEMORY_LABEL in demanded else 0
    except ValueError:
        return None
    size = size or -(-max(request.shape.mib, 1) // unit) * unit
    if not (0 < count <= MOST_GPUS and size <= MOST_MIB):
        return None
    gpus = tuple(Gpu(index, f"{_COMING}-{index}", size) for index in range(count))
    labels = {MODE_LABEL: mode.value, _HOST_LABEL: _COMING} | demanded
    offered = resources_for_mode(mode, gpus, unit)
    amounts: ResourceList = {
        name: f"{amount}m" if name == CPU else str(amount) for name, amount in {**needs, **offered}.items()
    }
    inventory = encode_inventory(Inventory(gpus, mode=mode.value, unit_mib=unit))
    taint = Taint(key=WHOLE_GPU, value="present", effect="NoSchedule")
    return Node(
        metadata=ObjectMeta(name=_COMING, labels=labels, annotations={INVENTORY_ANNOTATION: inventory}),
        spec=NodeSpec(taints=(taint,) if configuration.controller.taint_nodes else ()),
        status=NodeStatus(capacity=amounts, allocatable=amounts),
    )


def demanded_labels(pod: Pod) -> dict[str, str] | None:
    """Return labels of a node that the pod accepts; None if none are found.

    If the affinity has several terms, the first one that can be met decides.
    """
    selected = dict(pod.spec.node_selector)
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None or affinity.required is None:
        return selected
    for term in affinity.required.node_selector_terms:
        labels = None if term.match_fields else _labels(selected, term.match_expressions)
        if labels is not None:
            return labels
    return None


def _labels(given: Mapping[str, str], requirements: Iterable[NodeSelectorRequirement]) -> dict[str, str] | None:
    labels = dict(given)
    for requirement in requirements:
        if requirement.operator == "In" and requirement.values:
            labels.setdefault(requirement.key, requirement.values[0])
        elif requirement.operator == "Exists":
            labels.setdefault(requirement.key, "")
        elif requirement.operator in ("Gt", "Lt") and requirement.key not in labels:
            return None
    return labels


def _in_unit(pod: Pod, configuration: Configuration) -> Pod:
    """Return the pod with its memory counted in the unit in force, rounded up; unchanged where it is counted so."""
    try:
        request = parse_request(pod, configuration.unit_mib)
    except RequestError:
        return pod
    unit = configuration.unit_mib
    if request is None or request.shape.kind is not RequestKind.SHARED or request.unit_mib == unit:
        return pod
    each = request.unit_mib

    def converted(container: Container) -> Container:
        units = -(-count_of(container.resources.limits, GPU_MEMORY) * each // unit)
        step = int(pod.metadata.labels.get(GPU_COUNT_LABEL, "1"))
        return _with(container, GPU_MEMORY, -(-units // step) * step) if units else container

    annotations = pod.metadata.annotations | {MEMORY_UNIT_ANNOTATION: str(unit)}
    metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
    return msgspec.structs.replace(_changed(pod, converted), metadata=metadata)


def _capped(pod: Pod, resource: str, most: int) -> Pod:
    def capped(container: Container) -> Container:
        asked = count_of(container.resources.limits, resource)
        return _with(container, resource, most) if asked > most else container

    return _changed(pod, capped)


def _changed(pod: Pod, change: Callable[[Container], Container]) -> Pod:
    containers = tuple(map(change, pod.spec.containers))
    init = tuple(map(change, pod.spec.init_containers))
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, containers=containers, init_containers=init)
    )


def _containers(pod: Pod) -> tuple[Container, ...]:
    return (*pod.spec.init_containers, *pod.spec.containers)


def _with(container: Container, resource: str, amount: int) -> Container:
    """Return the container with another amount of a resource, in its request too where it has one."""
    limits = container.resources.limits | {resource: str(amount)}
    requests = container.resources.requests
    if resource in requests:
        requests = requests | {resource: str(amount)}
    return msgspec.structs.replace(container, resources=ResourceRequirements(limits=limits, requests=requests))
