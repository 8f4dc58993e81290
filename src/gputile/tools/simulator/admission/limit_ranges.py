"""Applies the LimitRanges of a namespace to containers, as the admission plugin LimitRanger does.

Bounds of whole pods and ratios of limits to requests are not judged.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, Origin
from gputile.tools.simulator.rules.objects.quotas import broken_limit_range
from gputile.tools.simulator.rules.pods.pod import broken_pod_spec
from gputile.tools.simulator.rules.values.fields import broken_fields

Json = Mapping[str, Any]
_KIND: Final = "LimitRange"
_GIVEN: Final = " (with what a LimitRange gives)"


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """What all LimitRanges of a namespace say of containers together, by resource.

    ``limits`` and ``requests`` are the defaults, of which the first one counts, and ``least`` and ``most`` the bounds,
    of which the narrowest one counts.
    """

    limits: Json = field(default_factory=dict)
    requests: Json = field(default_factory=dict)
    least: Json = field(default_factory=dict)
    most: Json = field(default_factory=dict)

    def beside(self, other: "ContainerLimits") -> "ContainerLimits":
        """Return what these say together with others that come later."""
        return ContainerLimits(
            {**other.limits, **self.limits},
            {**other.requests, **self.requests},
            _narrowest(self.least, other.least, -1),
            _narrowest(self.most, other.most, 1),
        )


RangeLimits = Mapping[str, ContainerLimits]


def _narrowest(bounds: Json, others: Json, sign: int) -> Json:
    """Return of each resource the smaller bound, with the ``sign`` -1 the larger one."""
    found = dict(bounds)
    for name, amount in others.items():
        if name not in found or parse_quantity(amount) * sign < parse_quantity(found[name]) * sign:
            found[name] = amount
    return found


def _of(limit: Json) -> ContainerLimits:
    """Return one entry of a LimitRange; a bound is a default where there is none, and a limit also is a request."""
    limits = {**limit.get("max", {}), **limit.get("default", {})}
    requests = {**limit.get("min", {}), **limits, **limit.get("defaultRequest", {})}
    return ContainerLimits(limits, requests, limit.get("min", {}), limit.get("max", {}))


def unusable(body: Json) -> str:
    """Return why a LimitRange cannot be applied, "" where it can: an unknown field means nothing, as for its users."""
    fields = broken_fields(kubernetes_kinds().kinds["v1"][_KIND], body)
    broken = [f"{path}: {rule}" for path, rule in fields if not rule.startswith("unknown field")]
    return next((f"{path}: {rule}" for path, rule in broken_limit_range(body)), "") if not broken else broken[0]


def written_limits(manifests: Iterable[Manifest]) -> dict[str, ContainerLimits]:
    """Return the limits of containers in the LimitRanges among ``manifests``, by namespace.

    Those that an API server would refuse are left out.
    """
    found: dict[str, ContainerLimits] = {}
    for manifest in manifests:
        if (manifest.kind, manifest.api_version) != (_KIND, "v1"):
            continue
        body = manifest.body
        if unusable(body):
            continue
        namespace = body.get("metadata", {}).get("namespace") or "default"
        for limit in body.get("spec", {}).get("limits", ()):
            if limit["type"] == "Container":
                found[namespace] = found.get(namespace, ContainerLimits()).beside(_of(limit))
    return found


def with_limits(origin: Origin, prefix: str, pod: Json, limits: RangeLimits) -> Json:
    """Return ``pod`` with the default limits and requests of its namespace; ``prefix`` stands before its fields.

    Raises:
        ManifestError: a container is below a least or above a most amount, or an API server does not take the pod with
            its defaults; each one is a line.
    """
    applied = limits.get(pod["metadata"]["namespace"])
    if applied is None:
        return pod
    spec = dict(pod["spec"])
    for kind in ("initContainers", "containers"):
        if kind in spec:
            spec[kind] = [_completed(container, applied) for container in spec[kind]]
    broken = [
        str(origin.error(f"{prefix}spec.{kind}[{i}].resources.{path}", rule))
        for kind in ("initContainers", "containers")
        for i, container in enumerate(spec.get(kind, ()))
        for path, rule in _broken(container["resources"], applied)
    ]
    before = set(broken_pod_spec(f"{prefix}spec", pod["spec"]))
    completed = (each for each in broken_pod_spec(f"{prefix}spec", spec) if each not in before)
    broken += [str(origin.error(path, f"{rule}{_GIVEN}")) for path, rule in completed]
    if broken:
        raise ManifestError("\n".join(broken))
    return {**pod, "spec": spec}


def _completed(container: Json, applied: ContainerLimits) -> Json:
    """Return a container with what it lacks; a limit without a request is one already."""
    resources = container.get("resources", {})
    limits, own = resources.get("limits", {}), {**resources.get("limits", {}), **resources.get("requests", {})}
    completed = {"limits": {**applied.limits, **limits}, "requests": {**applied.requests, **own}}
    return {**container, "resources": {**resources, **completed}}


def _broken(resources: Json, applied: ContainerLimits) -> Iterator[tuple[str, str]]:
    """Yield the field and what is wrong with it, of a container that has its defaults."""
    for bounds, beyond, word in ((applied.least, -1, "minimum"), (applied.most, 1, "maximum")):
        for name, written in bounds.items():
            for field_ in ("limits", "requests"):
                given = resources[field_].get(name, written)
                if (parse_quantity(given) - parse_quantity(written)) * beyond > 0:
                    said = f"Forbidden: {word} {name} usage per Container is {written}, but it is {given}"
                    yield f"{field_}[{shown(name)}]", said
