"""What a cluster does to a pod before scheduling it: the API server's checks, and gputile's own rewriting.

GPU amounts that are numbers are not judged here: that is part of deciding, where a refusal is an answer about that one
pod.
"""

import msgspec

from gputile.api.core import Pod, ResourceList
from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.well_known import GPU_RESOURCES
from gputile.core.admission.json_patch import apply_patch
from gputile.core.admission.rewrite import rewrite
from gputile.core.kube_predicates.api_rules import broken_rule
from gputile.core.kube_predicates.pod_requests import is_pod_level
from gputile.tools.simulator.manifests import ManifestError, Origin


def admit(origin: Origin, path: str, pod: Pod, notes: list[str]) -> Pod:
    """Return ``pod`` as a cluster would schedule it; ``path`` is where its fields stand ("", "spec.template").

    Raises:
        ManifestError: the API server or gputile's webhook would refuse it.
    """
    prefix = f"{path}." if path else ""
    pod = _rewritten(origin, prefix, pod, notes)
    spec = pod.spec
    if not spec.containers:
        raise origin.error(f"{prefix}spec.containers", "a pod needs at least one container")
    for field, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for i, container in enumerate(containers):
            where = f"{prefix}spec.{field}[{i}].resources"
            _check_amounts(origin, f"{where}.limits", container.resources.limits)
            _check_amounts(origin, f"{where}.requests", container.resources.requests)
    if spec.resources is not None:
        _check_amounts(origin, f"{prefix}spec.resources.limits", spec.resources.limits, whole_pod=True)
        _check_amounts(origin, f"{prefix}spec.resources.requests", spec.resources.requests, whole_pod=True)
    _check_amounts(origin, f"{prefix}spec.overhead", spec.overhead)
    if (broken := broken_rule(spec)) is not None:
        raise origin.error(f"{prefix}spec.{broken[0]}", broken[1])
    return pod


def _rewritten(origin: Origin, prefix: str, pod: Pod, notes: list[str]) -> Pod:
    """Return the pod as the webhook stores it."""
    rewriting = rewrite(pod)
    if rewriting.refusals:
        raise ManifestError(f"{origin}: {prefix}{rewriting.refusals[0].text}")
    notes += [f"{origin}: {prefix}{warning}" for warning in rewriting.warnings]
    if not rewriting.operations:
        return pod
    return msgspec.convert(apply_patch(rewriting.operations, msgspec.to_builtins(pod)), Pod)


def _check_amounts(origin: Origin, path: str, amounts: ResourceList, *, whole_pod: bool = False) -> None:
    for name, amount in amounts.items():
        if whole_pod and not is_pod_level(name):
            rule = "a pod as a whole asks for cpu, memory and hugepages-* only: set it in a container"
            raise origin.error(f'{path}["{name[:80]}"]', rule)
        try:
            value = parse_quantity(amount)
        except QuantityError as error:
            raise origin.error(f'{path}["{name[:80]}"]', str(error)) from error
        if value < 0:
            raise origin.error(f'{path}["{name[:80]}"]', f"{amount} is negative")
        if "/" in name and value.denominator != 1 and name not in GPU_RESOURCES:
            raise origin.error(f'{path}["{name[:80]}"]', f"{amount} is not a whole number, as {name} is counted")
