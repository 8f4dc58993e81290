"""Applies the LimitRanges of a namespace to pods, as the admission plugin LimitRanger does."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, Origin
from gputile.tools.simulator.rules.objects.quotas import broken_limit_range
from gputile.tools.simulator.rules.pods.pod import broken_pod_spec
from gputile.tools.simulator.rules.values.fields import Json, broken_fields

_KIND: Final = "LimitRange"
_GIVEN: Final = " (with what a LimitRange gives)"


@dataclass(frozen=True, slots=True)
class AmountBounds:
    """The least and most amounts by resource, and the most that a limit may be as a multiple of its request."""

    least: Json = field(default_factory=dict)
    most: Json = field(default_factory=dict)
    ratios: Json = field(default_factory=dict)

    def beside(self, other: "AmountBounds") -> "AmountBounds":
        """Return the narrowest of these and others."""
        return AmountBounds(
            _narrowest(self.least, other.least, -1),
            _narrowest(self.most, other.most, 1),
            _narrowest(self.ratios, other.ratios, 1),
        )


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """What all LimitRanges of a namespace say of pods together, by resource.

    ``limits`` and ``requests`` are the defaults of containers, of which the first one counts. ``container`` bounds each
    container, and ``pod`` what the containers of a pod take together.
    """

    limits: Json = field(default_factory=dict)
    requests: Json = field(default_factory=dict)
    container: AmountBounds = field(default_factory=AmountBounds)
    pod: AmountBounds = field(default_factory=AmountBounds)

    def beside(self, other: "NamespaceLimits") -> "NamespaceLimits":
        """Return what these say together with others that come later."""
        return NamespaceLimits(
            {**other.limits, **self.limits},
            {**other.requests, **self.requests},
            self.container.beside(other.container),
            self.pod.beside(other.pod),
        )


RangeLimits = Mapping[str, NamespaceLimits]


def _narrowest(bounds: Json, others: Json, sign: int) -> Json:
    """Return of each resource the smaller bound, with the ``sign`` -1 the larger one."""
    found = dict(bounds)
    for name, amount in others.items():
        if name not in found or parse_quantity(amount) * sign < parse_quantity(found[name]) * sign:
            found[name] = amount
    return found


def _of(limit: Json) -> NamespaceLimits:
    """Return one entry of a LimitRange; a bound is a default where there is none, and a limit also is a request."""
    bounds = AmountBounds(limit.get("min", {}), limit.get("max", {}), limit.get("maxLimitRequestRatio", {}))
    if limit["type"] == "Pod":
        return NamespaceLimits(pod=bounds)
    if limit["type"] != "Container":
        return NamespaceLimits()
    limits = {**limit.get("max", {}), **limit.get("default", {})}
    requests = {**limit.get("min", {}), **limits, **limit.get("defaultRequest", {})}
    return NamespaceLimits(limits, requests, bounds)


def unusable(body: Json) -> str:
    """Return why a LimitRange cannot be applied, "" where it can: an unknown field means nothing, as for its users."""
    fields = broken_fields(kubernetes_kinds().kinds["v1"][_KIND], body)
    broken = [f"{path}: {rule}" for path, rule in fields if not rule.startswith("unknown field")]
    return next((f"{path}: {rule}" for path, rule in broken_limit_range(body)), "") if not broken else broken[0]


def written_limits(manifests: Iterable[Manifest]) -> dict[str, NamespaceLimits]:
    """Return the limits of pods in the LimitRanges among ``manifests``, by namespace.

    Those that an API server would refuse are left out.
    """
    found: dict[str, NamespaceLimits] = {}
    for manifest in manifests:
        if (manifest.kind, manifest.api_version) != (_KIND, "v1"):
            continue
        body = manifest.body
        if unusable(body):
            continue
        namespace = body.get("metadata", {}).get("namespace") or "default"
        for limit in body.get("spec", {}).get("limits", ()):
            found[namespace] = found.get(namespace, NamespaceLimits()).beside(_of(limit))
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
        for path, rule in _broken(container["resources"], applied.container)
    ]
    before = set(broken_pod_spec(f"{prefix}spec", pod["spec"]))
    completed = (each for each in broken_pod_spec(f"{prefix}spec", spec) if each not in before)
    broken += [str(origin.error(path, f"{rule}{_GIVEN}")) for path, rule in completed]
    if broken:
        raise ManifestError("\n".join(broken))
    return {**pod, "spec": spec}


def check_together(origin: Origin, prefix: str, pod: Json, limits: RangeLimits) -> None:
    """Hold a pod as it is stored against the ratios and the bounds of whole pods; ``prefix`` stands before its fields.

    Raises:
        ManifestError: it breaks one; each one is a line.
    """
    applied = limits.get(pod["metadata"]["namespace"])
    if applied is None:
        return
    spec = pod["spec"]
    amounts = {field_: _of_pod(spec, field_) for field_ in ("requests", "limits")}
    broken = [(f"{prefix}spec", rule) for rule in _beyond("Pod", applied.pod, amounts["requests"], amounts["limits"])]
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            limited, asked = _amounts(container, "limits"), _amounts(container, "requests")
            rules = _beyond("Container", AmountBounds(ratios=applied.container.ratios), {**limited, **asked}, limited)
            broken += [(f"{prefix}spec.{kind}[{i}].resources", rule) for rule in rules]
    if broken:
        raise ManifestError("\n".join(str(origin.error(path, rule)) for path, rule in broken))


def _amounts(container: Json, field_: str) -> dict[str, Fraction]:
    return {name: parse_quantity(each) for name, each in container.get("resources", {}).get(field_, {}).items()}


def _of_pod(spec: Json, field_: str) -> dict[str, Fraction]:
    """Return the requests or limits of a pod as LimitRanger adds them up: without overhead.

    Sidecars run beside what comes after them, and what is set for the pod as a whole takes the place of the sum.
    """
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in spec.get("initContainers", ()):
        together = _sum(sidecars, _taken(container, field_))
        if container.get("restartPolicy") == "Always":
            sidecars = together
        peak = _larger(peak, together)
    running = sidecars
    for container in spec["containers"]:
        running = _sum(running, _taken(container, field_))
    whole = _amounts(spec, field_)
    if field_ == "requests":
        whole = {**{name: each for name, each in _amounts(spec, "limits").items() if name not in running}, **whole}
    return {**_larger(peak, running), **whole}


def _taken(container: Json, field_: str) -> dict[str, Fraction]:
    """Return the requests or limits of a container; a limit without a request is one."""
    given = _amounts(container, field_)
    return given if field_ == "limits" else {**_amounts(container, "limits"), **given}


def _sum(amounts: Mapping[str, Fraction], others: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {**amounts, **{name: amounts.get(name, 0) + each for name, each in others.items()}}


def _larger(amounts: Mapping[str, Fraction], others: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {**amounts, **{name: max(amounts.get(name, each), each) for name, each in others.items()}}


def _beyond(
    kind: str, bounds: AmountBounds, requests: Mapping[str, Fraction], limits: Mapping[str, Fraction]
) -> Iterator[str]:
    """Yield which bounds are broken: a least amount asks for a request, a most amount for a limit, a ratio for both."""
    for name, written in bounds.least.items():
        said = f"Forbidden: minimum {name} usage per {kind} is {written}"
        if name not in requests:
            yield f"{said}, and no request is specified"
        elif min(requests[name], limits.get(name, requests[name])) < parse_quantity(written):
            yield f"{said}, and it is less"
    for name, written in bounds.most.items():
        said = f"Forbidden: maximum {name} usage per {kind} is {written}"
        if name not in limits:
            yield f"{said}, and no limit is specified"
        elif max(limits[name], requests.get(name, limits[name])) > parse_quantity(written):
            yield f"{said}, and it is more"
    for name, written in bounds.ratios.items():
        said = f"Forbidden: {name} max limit to request ratio per {kind} is {written}"
        if not requests.get(name) or not limits.get(name):
            yield f"{said}, and no {'limit' if requests.get(name) else 'request'} is specified"
        elif limits[name] > parse_quantity(written) * requests[name]:
            yield f"{said}, and it is more"


def _completed(container: Json, applied: NamespaceLimits) -> Json:
    """Return a container with what it lacks; a limit without a request is one already."""
    resources = container.get("resources", {})
    limits, own = resources.get("limits", {}), {**resources.get("limits", {}), **resources.get("requests", {})}
    completed = {"limits": {**applied.limits, **limits}, "requests": {**applied.requests, **own}}
    return {**container, "resources": {**resources, **completed}}


def _broken(resources: Json, applied: AmountBounds) -> Iterator[tuple[str, str]]:
    """Yield the field and what is wrong with it, of a container that has its defaults."""
    for bounds, beyond, word in ((applied.least, -1, "minimum"), (applied.most, 1, "maximum")):
        for name, written in bounds.items():
            for field_ in ("limits", "requests"):
                given = resources[field_].get(name, written)
                if (parse_quantity(given) - parse_quantity(written)) * beyond > 0:
                    said = f"Forbidden: {word} {name} usage per Container is {written}, but it is {given}"
                    yield f"{field_}[{shown(name)}]", said
