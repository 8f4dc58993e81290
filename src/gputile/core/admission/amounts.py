"""Finds every rule of GPU amounts that a pod breaks (G2, M8, M10), by the parser that decides."""

from collections.abc import Iterator

import msgspec

from gputile.api.core import Container, Pod, PodSpec, ResourceRequirements
from gputile.api.well_known import GPU_CORE, GPU_MEMORY
from gputile.core.admission.gpu_requests import asked_by
from gputile.core.admission.refusal import MOST_FOUND, AdmissionRefusal, AdmissionRule
from gputile.core.devices.request import RequestError, parse_request

_TOGETHER = frozenset((GPU_MEMORY, GPU_CORE))  # judged as one: compute goes with memory


def broken_amounts(pod: Pod, unit_mib: int) -> list[AdmissionRefusal]:
    """Return what is wrong with the amounts, each mistake once; ``unit_mib`` is the memory unit in force.

    The parser stops at the first mistake. To report all of them at once, this function lets it parse each resource of
    each container alone, then each container, then the pod.
    """
    last = _error(pod, unit_mib)
    if last is None:
        return []  # a pod without a mistake has none in its parts
    found: dict[str, None] = {}
    for error in (_error(part, unit_mib) for part in _parts(pod)):
        if error is not None:
            found.setdefault(error)
        if len(found) == MOST_FOUND:
            break
    found.setdefault(last)
    return [AdmissionRefusal(AdmissionRule.AMOUNT, text) for text in found]


def _error(pod: Pod, unit_mib: int) -> str | None:
    try:
        parse_request(pod, unit_mib)
    except RequestError as error:
        return str(error)
    return None


def _parts(pod: Pod) -> Iterator[Pod]:
    for container in pod.spec.init_containers:
        for part in _alone(container):
            yield _pod_of(pod, PodSpec(init_containers=(part,)))
    for container in pod.spec.containers:
        for part in _alone(container):
            yield _pod_of(pod, PodSpec(containers=(part,)))


def _alone(container: Container) -> Iterator[Container]:
    """Yield the container with one resource at a time, and then as it is."""
    asked = set(asked_by(container))
    for names in (_TOGETHER, *(frozenset((name,)) for name in sorted(asked - _TOGETHER))):
        if asked & names and asked - names:
            yield _with_only(container, names)
    yield container


def _with_only(container: Container, names: frozenset[str]) -> Container:
    resources = ResourceRequirements(
        limits={name: amount for name, amount in container.resources.limits.items() if name in names},
        requests={name: amount for name, amount in container.resources.requests.items() if name in names},
    )
    return msgspec.structs.replace(container, resources=resources)


def _pod_of(pod: Pod, spec: PodSpec) -> Pod:
    return Pod(metadata=pod.metadata, spec=spec)
