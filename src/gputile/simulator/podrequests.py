"""How much of a node's plain resources a pod takes, in exact integers; GPU resources are left to the ledger."""

from collections.abc import Mapping

from gputile.api.core import Container, Node, PodSpec, ResourceList
from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.wellknown import GPU_RESOURCES

CPU = "cpu"
PODS = "pods"
Amounts = dict[str, int]


def pod_requests(spec: PodSpec) -> Amounts:
    """Return what the pod takes while it runs: cpu in thousandths, everything else in its own unit, rounded up.

    Sidecars keep what they take; an init container runs beside the sidecars started before it; the app containers
    run beside all sidecars (KEP-753).
    """
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers:
        requests = container_requests(container)
        if container.restart_policy == "Always":
            _add(sidecars, requests)
            _raise_to(peak, sidecars)
        else:
            _add(requests, sidecars)
            _raise_to(peak, requests)
    running = dict(sidecars)
    for container in spec.containers:
        _add(running, container_requests(container))
    _raise_to(peak, running)
    return {name: amount for name, amount in peak.items() if amount}


def container_requests(container: Container) -> Amounts:
    """Return one container's requests; where only a limit is set, the request is the limit."""
    amounts = {**container.resources.limits, **container.resources.requests}
    return {name: _amount(name, amount) for name, amount in amounts.items() if name not in GPU_RESOURCES}


def node_allocatable(node: Node) -> Amounts:
    """Return what pods may take of the node. An amount that cannot be read, or is negative, is nothing."""
    resources: ResourceList = node.status.allocatable or node.status.capacity
    return {name: _readable(name, amount) for name, amount in resources.items() if name not in GPU_RESOURCES}


def insufficient(needs: Mapping[str, int], used: Mapping[str, int], allocatable: Mapping[str, int]) -> str | None:
    """Return the first resource that the node lacks, in kube-scheduler's words; None where there is enough of all."""
    if used.get(PODS, 0) + 1 > allocatable.get(PODS, 0):
        return "Too many pods"
    for name, amount in needs.items():
        if amount > allocatable.get(name, 0) - used.get(name, 0):
            return f"Insufficient {name}"
    return None


def _amount(name: str, quantity: str | int | float) -> int:
    value = parse_quantity(quantity) * (1000 if name == CPU else 1)
    return -(-value.numerator // value.denominator)


def _readable(name: str, quantity: str | int | float) -> int:
    try:
        value = parse_quantity(quantity) * (1000 if name == CPU else 1)
    except QuantityError:
        return 0
    return max(0, value.numerator // value.denominator)


def _add(amounts: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + amount


def _raise_to(amounts: Amounts, least: Mapping[str, int]) -> None:
    for name, amount in least.items():
        amounts[name] = max(amounts.get(name, 0), amount)
