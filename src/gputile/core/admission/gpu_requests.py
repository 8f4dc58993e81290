"""Tells whether a pod asks for GPUs at all, and for which."""

from collections.abc import Iterator

from gputile.api.core import Container, Pod, ResourceList
from gputile.api.quantity import QuantityError, parse_count
from gputile.api.well_known import GPU_RESOURCES, MIG_PREFIX


def asks_for_gpu(pod: Pod) -> bool:
    """Return whether a container of the pod asks for a GPU or a part of one, an instance of MIG included.

    "0" asks for none; a text that is no number counts as a request.
    """
    return is_decided(pod) or any(_asks_for_mig(container) for container in containers(pod))


def is_decided(pod: Pod) -> bool:
    """Return whether gputile decides which GPU the pod gets; instances of MIG are counted by Kubernetes alone."""
    return any(True for container in containers(pod) for _ in asked_by(container))


def asks_for(pod: Pod, resource: str) -> bool:
    """Return whether a container of the pod asks for this GPU resource."""
    return any(resource == asked for container in containers(pod) for asked in asked_by(container))


def asked_by(container: Container) -> Iterator[str]:
    """Yield the GPU resources that a container asks for and gputile decides about."""
    if not (container.resources.limits or container.resources.requests):
        return
    for name in GPU_RESOURCES:
        amounts = (container.resources.limits.get(name), container.resources.requests.get(name))
        if any(amount is not None and not _is_zero(amount) for amount in amounts):
            yield name


def containers(pod: Pod) -> list[Container]:
    """Return the containers that may ask for resources, in the order in which they start."""
    return [*pod.spec.init_containers, *pod.spec.containers]


def _asks_for_mig(container: Container) -> bool:
    def any_in(amounts: ResourceList) -> bool:
        return any(name.startswith(MIG_PREFIX) and not _is_zero(amount) for name, amount in amounts.items())

    return any_in(container.resources.limits) or any_in(container.resources.requests)


def _is_zero(amount: str | int | float) -> bool:
    try:
        return parse_count(amount) == 0
    except QuantityError:
        return False
