"""Computes how much of a node's resources a pod takes, in exact integers.

GPU resources count too, as totals of the node: that is all that kube-scheduler sees of them.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import msgspec

from gputile.api.core import (
    POD_RESIZE_PENDING,
    Container,
    Node,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceList,
    ResourcesInUse,
)
from gputile.api.quantity import LONGEST_QUANTITY, MIB, QuantityError, parse_quantity
from gputile.api.well_known import LEGACY_GPU, WHOLE_GPU
from gputile.core.refusal import PredicateRule, Refusal, refusal_by

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
_HUGE_PAGES = "hugepages-"
MOST_CPU = 2**30
"""Milli-CPU of a pod or a node that can still be added up in 64 bits: a million cores, more than any machine has."""
MOST_HOST_MIB = 2**40
"""The same for MiB of a machine's memory: an exbibyte."""
TOO_MANY_PODS = refusal_by(PredicateRule.TOO_MANY_PODS)
_FIRST = {CPU: 0, MEMORY: 1, "ephemeral-storage": 2}  # the order in which kube-scheduler looks
Amounts = dict[str, int]
_Reader = Callable[[ResourceList], Amounts]
NEW_POD = PodStatus()
"""The status of a pod that does not run."""


class HostResources(msgspec.Struct, frozen=True, gc=False):
    """Milli-CPU, and MiB of the machine's memory (not of its GPUs).

    There is one for each pod of a cluster, which the collector need not walk.
    """

    cpu: int = 0
    mib: int = 0


NO_HOST_RESOURCES = HostResources()


def pod_requests(spec: PodSpec, status: PodStatus = NEW_POD) -> Amounts:
    """Return what the pod takes while it runs: cpu in thousandths, everything else in its own unit, rounded up.

    A pod that runs takes what its ``status`` says, too.
    """
    peak = _peak(spec, status, _amounts)
    return {name: peak[name] for name in sorted(peak, key=lambda name: _FIRST.get(name, 3)) if peak[name]}


def host_request(pod: Pod) -> HostResources:
    """Return the milli-CPU and the MiB, rounded up, that the pod takes, at most ``MOST_CPU`` and ``MOST_HOST_MIB``.

    Nothing else is read: services ask this of every pod, and a pod may name tens of thousands of resources.
    """
    peak = _peak(pod.spec, pod.status, _host_amounts)
    return HostResources(min(peak.get(CPU, 0), MOST_CPU), min(-(-peak.get(MEMORY, 0) // MIB), MOST_HOST_MIB))


def _peak(spec: PodSpec, status: PodStatus, read: _Reader) -> Amounts:
    """Return what the pod takes of the resources that ``read`` gives amounts of.

    Sidecars keep what they take; an init container runs beside the sidecars started before it; the app containers
    run beside all sidecars (KEP-753). What is asked for the pod as a whole replaces that (KEP-2837), and the overhead
    of its RuntimeClass comes on top: ``PodRequests`` of k8s.io/component-helpers.
    """
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            _add(sidecars, _container_requests(container, status, read))
            _raise_to(peak, sidecars)
        else:
            requests = _container_requests(container, NEW_POD, read)
            _add(requests, sidecars)
            _raise_to(peak, requests)
    running = dict(sidecars)
    for container in spec.containers:
        _add(running, _container_requests(container, status, read))
    _raise_to(peak, running)
    if spec.resources is not None:
        whole = _pod_level(read(spec.resources.limits), read(spec.resources.requests), peak)
        if status.resources is not None:
            held = _resized(whole, status, status.resources, status.allocated_resources, read)
            whole = {name: held.get(name, 0) for name in whole}
        peak |= whole
    _add(peak, read(spec.overhead))
    return peak


def host_allocatable(node: Node, unknown: HostResources) -> HostResources:
    """Return what pods may take of the node, as ``host_request`` counts; of ``unknown`` what it does not say."""
    resources = node.status.allocatable or node.status.capacity
    cpu, memory = resources.get(CPU), resources.get(MEMORY)
    return HostResources(
        unknown.cpu if cpu is None else min(_floor(CPU, cpu), MOST_CPU),
        unknown.mib if memory is None else min(_floor(MEMORY, memory) // MIB, MOST_HOST_MIB),
    )


def _container_requests(container: Container, status: PodStatus, read: _Reader) -> Amounts:
    """Return one container's requests; where only a limit is set, the request is the limit.

    An amount that cannot be read, or is negative, is nothing: such a GPU request is refused when it is decided.
    """
    asked = read({**container.resources.limits, **container.resources.requests})
    for each in (*status.container_statuses, *status.init_container_statuses):
        if each.name == container.name and each.resources is not None:
            return _resized(asked, status, each.resources, each.allocated_resources, read)
    return asked


def _resized(
    asked: Amounts, status: PodStatus, in_use: ResourcesInUse, kept: ResourceList | None, read: _Reader
) -> Amounts:
    """Return the most of what is asked for, in use, and kept on the node; what no node can give is not asked for.

    That is ``determineEffectiveRequests`` of k8s.io/component-helpers, for resizes in place (KEP-1287).
    """
    waits = (each.reason for each in status.conditions if each.type == POD_RESIZE_PENDING)
    most = {} if next(waits, "") == "Infeasible" else dict(asked)
    _raise_to(most, read(in_use.requests))
    _raise_to(most, read(kept or {}))
    return most


def is_pod_level(name: str) -> bool:
    """Return whether a resource can be asked for by the pod as a whole (KEP-2837)."""
    return name in (CPU, MEMORY) or name.startswith(_HUGE_PAGES)


def _pod_level(limits: Amounts, requests: Amounts, containers: Amounts) -> Amounts:
    """Return what the pod asks for as a whole, with the API server's defaults where a request is missing.

    For CPU and memory that is what its containers ask for, and the pod's limit where none of them asks; huge pages
    cannot be overcommitted, and their request is the limit.
    """
    default = {
        name: amount for name, amount in limits.items() if name.startswith(_HUGE_PAGES) or name not in containers
    }
    return {name: amount for name, amount in (default | requests).items() if is_pod_level(name)}


def node_allocatable(node: Node) -> Amounts:
    """Return what pods may take of the node. An amount that cannot be read, or is negative, is nothing."""
    resources: ResourceList = node.status.allocatable or node.status.capacity
    return {name: _floor(name, quantity) for name, quantity in resources.items()}


def insufficient(
    needs: Mapping[str, int], used: Mapping[str, int], allocatable: Mapping[str, int]
) -> Iterator[Refusal[PredicateRule]]:
    """Yield each resource that the node lacks for a pod, its place as a pod first."""
    if used.get(PODS, 0) + 1 > allocatable.get(PODS, 0):
        yield TOO_MANY_PODS
    for name, amount in needs.items():
        if amount > allocatable.get(name, 0) - used.get(name, 0):
            yield lacks(name)


def lacks(name: str) -> Refusal[PredicateRule]:
    return refusal_by(PredicateRule.INSUFFICIENT, about=name)


def _amounts(resources: ResourceList) -> Amounts:
    """Return amounts rounded up; 0 for one that cannot be read, or is negative."""
    amounts: Amounts = {}
    for name, quantity in resources.items():
        today = WHOLE_GPU if name == LEGACY_GPU else name
        amounts[today] = amounts.get(today, 0) - _floor(name, quantity, sign=-1)
    return amounts


def _host_amounts(resources: ResourceList) -> Amounts:
    """Return CPU and memory as ``_amounts`` does, and nothing else."""
    return {name: -_floor(name, resources[name], sign=-1) for name in (CPU, MEMORY) if name in resources}


def _floor(name: str, quantity: Quantity, sign: int = 1) -> int:
    """Return ``sign`` times the amount, rounded down; 0 for one that is not a quantity, or negative."""
    if isinstance(quantity, str) and len(quantity) > LONGEST_QUANTITY:
        return 0  # it is not a quantity, and is not kept
    return _scaled(quantity, 1000 if name == CPU else 1, sign)


@lru_cache(maxsize=4096)
def _scaled(quantity: Quantity, factor: int, sign: int) -> int:
    try:
        value = parse_quantity(quantity) * factor
    except QuantityError:
        return 0
    return math.floor(sign * value) if value > 0 else 0


def _add(amounts: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + amount


def _raise_to(amounts: Amounts, least: Mapping[str, int]) -> None:
    for name, amount in least.items():
        amounts[name] = max(amounts.get(name, 0), amount)
