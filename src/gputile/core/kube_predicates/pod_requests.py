"""Computes what a pod requests of its node: resources, in exact integers, and ports.

GPU resources are included as totals of the node, as kube-scheduler counts them. Whether a single
GPU has enough room is decided in ``placement.fit``.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import msgspec

from gputile.api.core import Container, Node, Pod, PodSpec, Quantity, ResourceList
from gputile.api.quantity import LONGEST_QUANTITY, MIB, QuantityError, parse_quantity
from gputile.api.well_known import LEGACY_GPU, WHOLE_GPU
from gputile.core.refusal import PredicateRule, Refusal, refusal_by

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
_HUGE_PAGES = "hugepages-"
MOST_CPU = 2**30
"""The limit for milli-CPU of a pod or node, a million cores, so that sums fit in 64 bits."""
MOST_HOST_MIB = 2**40
"""The limit for MiB of memory of a pod or node, an exbibyte, for the same reason."""
PORT_TAKEN = refusal_by(PredicateRule.HOST_PORTS)
TOO_MANY_PODS = refusal_by(PredicateRule.TOO_MANY_PODS)
_FIRST = {CPU: 0, MEMORY: 1, "ephemeral-storage": 2}  # the order of kube-scheduler's checks
Amounts = dict[str, int]
HostPort = tuple[int, str]  # number and protocol
_Reader = Callable[[ResourceList], Amounts]


class HostResources(msgspec.Struct, frozen=True, gc=False):
    """Milli-CPU, and MiB of the machine's memory (not of its GPUs).

    Each pod has such an object, so garbage collection skips these objects.
    """

    cpu: int = 0
    mib: int = 0


NO_HOST_RESOURCES = HostResources()


def pod_requests(spec: PodSpec) -> Amounts:
    """Return the pod's effective requests, rounded up.

    ``cpu`` is in thousandths, and each other resource is in its own unit. During an in-place
    resize, the desired amounts count.
    """
    peak = _peak(spec, _amounts)
    return {
        name: peak[name]
        for name in sorted(peak, key=lambda name: _FIRST.get(name, 3))
        if peak[name]
    }


def host_request(pod: Pod) -> HostResources:
    """Return the milli-CPU and MiB that the pod requests, rounded up.

    The amounts are at most ``MOST_CPU`` and ``MOST_HOST_MIB``. Other resources are not read:
    services call this function for every pod, and a pod may name tens of thousands of resources.
    """
    peak = _peak(pod.spec, _host_amounts)
    return HostResources(
        min(peak.get(CPU, 0), MOST_CPU), min(-(-peak.get(MEMORY, 0) // MIB), MOST_HOST_MIB)
    )


def _peak(spec: PodSpec, read: _Reader) -> Amounts:
    """Return the pod's effective requests for the resources that ``read`` extracts.

    Sidecars run until the end. An init container runs together with the sidecars started before it.
    The app containers run together with all sidecars (KEP-753). Pod-level requests replace this sum
    (KEP-2837). The overhead of the RuntimeClass is added, as in ``PodRequests`` of
    k8s.io/component-helpers.
    """
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            _add(sidecars, _container_requests(container, read))
            _raise_to(peak, sidecars)
        else:
            requests = _container_requests(container, read)
            _add(requests, sidecars)
            _raise_to(peak, requests)
    running = dict(sidecars)
    for container in spec.containers:
        _add(running, _container_requests(container, read))
    _raise_to(peak, running)
    if spec.resources is not None:
        peak |= _pod_level(read(spec.resources.limits), read(spec.resources.requests), peak)
    _add(peak, read(spec.overhead))
    return peak


def host_allocatable(node: Node, unknown: HostResources) -> HostResources:
    """Return what pods may use of the node, in the units of ``host_request``.

    ``unknown`` replaces missing amounts.
    """
    resources = node.status.allocatable or node.status.capacity
    cpu, memory = resources.get(CPU), resources.get(MEMORY)
    return HostResources(
        unknown.cpu if cpu is None else min(_floor(CPU, cpu), MOST_CPU),
        unknown.mib if memory is None else min(_floor(MEMORY, memory) // MIB, MOST_HOST_MIB),
    )


def _container_requests(container: Container, read: _Reader) -> Amounts:
    """Return one container's requests. If only a limit is set, the request is equal to the limit.

    An invalid or negative amount counts as 0. ``parse_request`` refuses an invalid amount of GPUs.
    """
    return read({**container.resources.limits, **container.resources.requests})


def _pod_level(limits: Amounts, requests: Amounts, containers: Amounts) -> Amounts:
    """Return the pod-level requests, with the API server's defaults for missing requests.

    The default for CPU and memory is the sum of the containers' requests, or the pod's limit if no
    container has a request. Huge pages cannot be overcommitted, so their default is the limit.
    """
    default = {
        name: amount
        for name, amount in limits.items()
        if name.startswith(_HUGE_PAGES) or name not in containers
    }
    return {
        name: amount
        for name, amount in (default | requests).items()
        if name in (CPU, MEMORY) or name.startswith(_HUGE_PAGES)
    }


def node_allocatable(node: Node) -> Amounts:
    """Return what pods may use of the node. An invalid or negative amount counts as 0."""
    resources: ResourceList = node.status.allocatable or node.status.capacity
    return {name: _floor(name, quantity) for name, quantity in resources.items()}


def insufficient(
    needs: Mapping[str, int], used: Mapping[str, int], allocatable: Mapping[str, int]
) -> Iterator[Refusal[PredicateRule]]:
    """Yield a refusal for each resource that the node lacks. The number of pods comes first."""
    if used.get(PODS, 0) + 1 > allocatable.get(PODS, 0):
        yield TOO_MANY_PODS
    for name, amount in needs.items():
        if amount > allocatable.get(name, 0) - used.get(name, 0):
            yield lacks(name)


def lacks(name: str) -> Refusal[PredicateRule]:
    return refusal_by(PredicateRule.INSUFFICIENT, about=name)


def _amounts(resources: ResourceList) -> Amounts:
    """Return amounts rounded up. An invalid or negative amount counts as 0."""
    amounts: Amounts = {}
    for name, quantity in resources.items():
        today = WHOLE_GPU if name == LEGACY_GPU else name
        amounts[today] = amounts.get(today, 0) - _floor(name, quantity, sign=-1)
    return amounts


def _host_amounts(resources: ResourceList) -> Amounts:
    """Return only CPU and memory, rounded as by ``_amounts``."""
    return {
        name: -_floor(name, resources[name], sign=-1) for name in (CPU, MEMORY) if name in resources
    }


def _floor(name: str, quantity: Quantity, sign: int = 1) -> int:
    """Return ``sign`` times the amount, rounded down. An invalid or negative amount counts as 0."""
    if isinstance(quantity, str) and len(quantity) > LONGEST_QUANTITY:
        return 0  # not a valid quantity, and too long for the cache
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


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Return the host ports of the pod's containers and sidecars. Host IPs are ignored.

    ``hostNetwork`` is not read. For pods in the host network, the API server sets each container
    port as a host port.
    """
    sidecars = (
        each for each in spec.init_containers if each.ports and each.restart_policy == "Always"
    )
    return tuple(
        (port.host_port, port.protocol or "TCP")
        for container in (*sidecars, *spec.containers)
        for port in container.ports
    )
