"""Applies the LimitRanges of a namespace to containers, as the admission plugin LimitRanger does.

Bounds of whole pods and ratios of limits to requests are not judged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gputile.api.kubernetes import kubernetes_kinds
from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError, Origin
from gputile.tools.simulator.rules.objects.quotas import broken_limit_range
from gputile.tools.simulator.rules.pods.pod import broken_pod_spec
from gputile.tools.simulator.rules.values.fields import broken_fields

Json = Mapping[str, Any]
Limits = Mapping[str, Sequence[Json]]
_KIND: Final = "LimitRange"
_GIVEN: Final = " (with what a LimitRange gives)"


def written_limits(manifests: Iterable[Manifest]) -> dict[str, list[Json]]:
    """Return the limits of containers in the LimitRanges among ``manifests``, by namespace.

    Those that an API server would refuse are left out.
    """
    found: dict[str, list[Json]] = {}
    for manifest in manifests:
        if (manifest.kind, manifest.api_version) != (_KIND, "v1"):
            continue
        body = manifest.body
        if broken_fields(kubernetes_kinds().kinds["v1"][_KIND], body) or any(broken_limit_range(body)):
            continue
        namespace = body.get("metadata", {}).get("namespace") or "default"
        limits = (each for each in body.get("spec", {}).get("limits", ()) if each["type"] == "Container")
        found.setdefault(namespace, []).extend(limits)
    return found


def with_limits(origin: Origin, prefix: str, pod: Json, limits: Limits) -> Json:
    """Return ``pod`` with the default limits and requests of its namespace; ``prefix`` stands before its fields.

    Raises:
        ManifestError: a container is below a least or above a most amount, or an API server does not take the pod with
            its defaults; each one is a line.
    """
    applied = limits.get(pod["metadata"]["namespace"], ())
    if not applied:
        return pod
    spec = dict(pod["spec"])
    for limit in applied:
        for kind in ("initContainers", "containers"):
            if kind in spec:
                spec[kind] = [_completed(container, limit) for container in spec[kind]]
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


def _completed(container: Json, limit: Json) -> Json:
    """Return a container with what it lacks; a limit without a request is one already."""
    most = {**limit.get("max", {}), **limit.get("default", {})}
    least = {**limit.get("min", {}), **most, **limit.get("defaultRequest", {})}
    resources = container.get("resources", {})
    limits, own = resources.get("limits", {}), {**resources.get("limits", {}), **resources.get("requests", {})}
    completed = {"limits": {**most, **limits}, "requests": {**least, **own}}
    return {**container, "resources": {**resources, **completed}}


def _broken(resources: Json, applied: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """Yield the field and what is wrong with it, of a container that has its defaults."""
    limits, requests = resources["limits"], resources["requests"]
    for limit in applied:
        for bound, beyond in (("min", -1), ("max", 1)):
            for name, written in limit.get(bound, {}).items():
                for field, amounts in (("limits", limits), ("requests", requests)):
                    given = amounts.get(name, written)
                    if (parse_quantity(given) - parse_quantity(written)) * beyond > 0:
                        word = "minimum" if beyond < 0 else "maximum"
                        said = f"Forbidden: {word} {name} usage per Container is {written}, but it is {given}"
                        yield f"{field}[{shown(name)}]", said
