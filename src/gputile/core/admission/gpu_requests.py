"""Finds the GPU resources that a pod requests, and the rules of amounts and shares that it breaks.

These are the rules G2, G4, M7, M8 and M10. Amounts are checked by the parser that scheduling uses.
"""

from collections.abc import Iterator, Mapping

from gputile.api.core import Container, Pod
from gputile.api.quantity import QuantityError, parse_active_threads, parse_count, parse_weight
from gputile.api.well_known import (
    GPU_RESOURCES,
    MIG_PREFIX,
    MPS_THREADS_ANNOTATION,
    TIME_WEIGHT_ANNOTATION,
)
from gputile.core.devices.request import RequestError, parse_request
from gputile.core.refusal import AdmissionRule, Refusal


def asks_for_gpu(pod: Pod) -> bool:
    """Return whether a container of the pod requests a GPU, a part of one, or a MIG instance.

    "0" is no request; an amount that is not a number counts as one.
    """
    resources = (container.resources for container in containers(pod))
    return is_decided(pod) or any(
        name.startswith(MIG_PREFIX) and not _is_zero(amount)
        for each in resources
        for name, amount in (*each.limits.items(), *each.requests.items())
    )


def is_decided(pod: Pod) -> bool:
    """Return whether gputile decides which GPU the pod gets; Kubernetes itself counts MIG instances."""
    return any(True for container in containers(pod) for _ in asked_by(container))


def asks_for(pod: Pod, resource: str) -> bool:
    return any(resource == asked for container in containers(pod) for asked in asked_by(container))


def asked_by(container: Container) -> Iterator[str]:
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


def broken_amounts(pod: Pod, unit_mib: int) -> list[Refusal[AdmissionRule]]:
    """Return a refusal for the first mistake in the amounts; ``unit_mib`` is the memory unit in force."""
    try:
        parse_request(pod, unit_mib)
    except RequestError as error:
        return [Refusal(AdmissionRule.AMOUNT, str(error))]
    return []


_LONGEST = 20


def broken_shares(annotations: Mapping[str, str], most_weight: int) -> list[Refusal[AdmissionRule]]:
    """Return a refusal for each invalid annotation; ``most_weight`` is the namespace's highest weight."""
    found = []
    parsers = {
        TIME_WEIGHT_ANNOTATION: lambda text: parse_weight(text, most_weight),
        MPS_THREADS_ANNOTATION: parse_active_threads,
    }
    for key, parse in parsers.items():
        try:
            parse(annotations.get(key, "1")[:_LONGEST])
        except ValueError as error:
            rule = f"metadata.annotations[{key}]: {error}: write such a number, or remove the annotation"
            found.append(Refusal(AdmissionRule.SHARE, rule))
    return found
