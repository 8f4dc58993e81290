"""Whether a pod asks for GPUs at all, and for which."""

from collections.abc import Iterator

from gputile.api.core import Container, Pod
from gputile.api.quantity import QuantityError, parse_count
from gputile.api.wellknown import GPU_RESOURCES


def asks_for_gpu(pod: Pod) -> bool:
    """Return whether a container of the pod asks for a GPU; "0" asks for none, and what is no number asks."""
    return any(True for container in containers(pod) for _ in asked_by(container))


def asks_for(pod: Pod, resource: str) -> bool:
    """Return whether a container of the pod asks for this GPU resource."""
    return any(resource == asked for container in containers(pod) for asked in asked_by(container))


def asked_by(container: Container) -> Iterator[str]:
    """Yield the GPU resources that a container asks for."""
    for name in GPU_RESOURCES:
        amounts = (container.resources.limits.get(name), container.resources.requests.get(name))
        if any(amount is not None and not _is_zero(amount) for amount in amounts):
            yield name


def containers(pod: Pod) -> list[Container]:
    """Return the containers that may ask for resources, in the order in which they start."""
    return [*pod.spec.init_containers, *pod.spec.containers]


def _is_zero(amount: str | int | float) -> bool:
    try:
        return parse_count(amount) == 0
    except QuantityError:
        return False
