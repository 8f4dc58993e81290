"""Checks a pod beyond the types of its fields (k8s.io/kubernetes, pkg/apis/core/validation).

The rules read manifests as written, after ``fields`` has checked them, and use the API server's words where these help
a reader. ``field_rules`` judges single values; containers, volumes and security have modules of their own.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.rules.pods.affinity import broken_affinity
from gputile.tools.simulator.rules.pods.containers import (
    broken_amounts,
    broken_container,
    broken_host_ports,
    broken_init_container,
    broken_resources,
)
from gputile.tools.simulator.rules.pods.security import broken_pod_security
from gputile.tools.simulator.rules.pods.startable import unstartable
from gputile.tools.simulator.rules.pods.tolerations import broken_toleration_times
from gputile.tools.simulator.rules.pods.volumes import broken_volumes
from gputile.tools.simulator.rules.values.field_rules import broken_values
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import (
    broken_annotations,
    broken_finalizer,
    broken_labels,
    broken_qualified_name,
    broken_subdomain,
)
from gputile.tools.simulator.rules.values.repeats import identity, repeated

_TYPE: Final = "core.v1.PodSpec"
_MOST_NAMESERVERS: Final = 3
_MOST_SEARCHES: Final = 32
_LONGEST_SEARCHES: Final = 2048
_LONGEST_HOSTNAME: Final = 64
_SHARED: Final = ("cpu", "memory")  # what a pod can limit as a whole


def broken_metadata(path: str, metadata: Json, *, plain_finalizers: bool = False) -> Iterator[Broken]:
    """Yield what is wrong with labels, annotations, owners and finalizers; plain ones have no domain before them."""
    yield from broken_copied_metadata(path, metadata, plain_finalizers=plain_finalizers)
    written = metadata.get("ownerReferences", ())
    # An API server reads equal ones once.
    owners = list({identity(owner): owner for owner in written}.values())
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        yield f"{path}.ownerReferences", "Invalid value: only one owner can have controller set to true"
    for i, owner in enumerate(owners):
        group, slash, version = owner["apiVersion"].partition("/")
        if slash and (not version or "/" in version):
            rule = "must be VERSION or GROUP/VERSION"
            yield f"{path}.ownerReferences[{i}].apiVersion", f"Invalid value: {shown(owner['apiVersion'])}: {rule}"
        if (group, owner["kind"]) == ("v1", "Event"):
            yield f"{path}.ownerReferences[{i}]", "Invalid value: an Event is disallowed from being an owner"


def broken_copied_metadata(path: str, metadata: Json, *, plain_finalizers: bool = False) -> Iterator[Broken]:
    """Yield what is wrong with labels, annotations and finalizers, which are all that pods have of their template's."""
    yield from broken_labels(f"{path}.labels", metadata.get("labels", {}))
    yield from broken_annotations(f"{path}.annotations", metadata.get("annotations", {}))
    for i, name in enumerate(metadata.get("finalizers", ())):
        if why := broken_qualified_name(name) if plain_finalizers else broken_finalizer(name):
            yield f"{path}.finalizers[{i}]", why
    if {"foregroundDeletion", "orphan"} <= set(metadata.get("finalizers", ())):
        yield f"{path}.finalizers", "Invalid value: orphan and foregroundDeletion cannot be both set"


def broken_pod_spec(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the spec of a pod or of a template, which stands at ``path``."""
    yield from broken_values(_TYPE, spec, path)
    yield from broken_volumes(f"{path}.volumes", spec.get("volumes", ()))
    names: set[str] = set()
    volumes = {each["name"]: each for each in spec.get("volumes", ())}
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            where = f"{path}.{kind}[{i}]"
            name = container["name"]
            if name in names:
                yield f"{where}.name", f"Duplicate value: {shown(name)}"
            names.add(name)
            yield from broken_container(where, container, spec, volumes)
            if kind == "initContainers":
                yield from broken_init_container(where, container)
    on_host = bool(spec.get("hostNetwork"))
    yield from broken_host_ports(f"{path}.containers", spec.get("containers", ()), on_host=on_host)
    if spec.get("ephemeralContainers"):
        yield f"{path}.ephemeralContainers", "Forbidden: cannot be set on create"
    yield from _whole_pod(f"{path}.resources", spec)
    yield from _spec_fields(path, spec)
    yield from _names_of_hosts(path, spec)
    yield from broken_pod_security(path, spec)
    yield from _by_plugins(path, spec)
    yield from _gates(path, spec)
    yield from broken_toleration_times(f"{path}.tolerations", spec.get("tolerations", ()))
    yield from _claims(f"{path}.resourceClaims", spec.get("resourceClaims", ()))
    yield from broken_affinity(path, spec)
    yield from unstartable(path, spec)


def _spec_fields(path: str, spec: Json) -> Iterator[Broken]:
    account = "serviceAccountName" if spec.get("serviceAccountName") else "serviceAccount"  # the field's former name
    if spec.get(account) and (why := broken_subdomain(spec[account])):
        yield f"{path}.{account}", why
    if spec.get("runtimeClassName") == "":
        yield f"{path}.runtimeClassName", 'Invalid value: "": must name a RuntimeClass; leave it out for the default'
    override = spec.get("hostnameOverride")
    if override is not None and (len(override) > _LONGEST_HOSTNAME or broken_subdomain(override)):
        rule = f"must be an RFC 1123 subdomain of no more than {_LONGEST_HOSTNAME} characters"
        yield f"{path}.hostnameOverride", f"Invalid value: {shown(override)}: {rule}"
    for field in ("hostNetwork", "setHostnameAsFQDN"):
        if override is not None and spec.get(field):
            yield f"{path}.hostnameOverride", f"Forbidden: may not be specified when {field} is true"


def _whole_pod(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with what a pod asks for as a whole, at ``path``, beside its containers."""
    resources = spec.get("resources")
    if not resources:
        return
    yield from _beyond(path, spec, resources)
    requests = {**_asked_together(spec), **resources.get("requests", {})}
    broken = list(broken_resources(path, {**resources, "requests": requests}, whole_pod=True))
    yield from broken
    if "claims" in resources:
        yield f"{path}.claims", "Forbidden: claims may not be set for resources at pod-level"
    if broken:
        return
    for name, written in resources.get("requests", {}).items():
        if _total(spec, name) > parse_quantity(written):
            rule = "must be greater than or equal to what the containers request together"
            yield f"{path}.requests[{shown(name)}]", f"Invalid value: {shown(str(written))}: {rule}"


def _beyond(path: str, spec: Json, resources: Json) -> Iterator[Broken]:
    """Yield the limits of containers that are above those of the whole pod, ``resources`` at ``path``."""
    for name, written in resources.get("limits", {}).items():
        for kind in ("initContainers", "containers"):
            for i, container in enumerate(spec.get(kind, ())):
                limit = container.get("resources", {}).get("limits", {}).get(name, 0)
                if parse_quantity(limit) > parse_quantity(written):
                    where = f"{path.rpartition('.')[0]}.{kind}[{i}].resources.limits[{shown(name)}]"
                    rule = f"must be less than or equal to pod limits of {written}"
                    yield where, f"Invalid value: {shown(str(limit))}: {rule}"


def _asked_together(spec: Json) -> dict[str, str]:
    """Return what an API server takes a pod as a whole to request where it says nothing: what its containers do."""
    totals = {name: _total(spec, name) for name in _SHARED}
    return {
        name: str(total) if total.denominator == 1 else f"{math.ceil(total * 1000)}m"
        for name, total in totals.items()
        if total
    }


def _total(spec: Json, name: str) -> Fraction:
    """Return how much of a resource a pod's containers request at most at a time; sidecars go on beside the others."""
    beside, most = Fraction(0), Fraction(0)
    for each in spec.get("initContainers", ()):
        asked = _asked(each, name)
        most = max(most, beside + asked)
        beside += asked if each.get("restartPolicy") == "Always" else 0
    return max(most, beside + sum((_asked(each, name) for each in spec.get("containers", ())), Fraction(0)))


def _asked(container: Json, name: str) -> Fraction:
    """Return how much of a resource a container requests."""
    resources = container.get("resources", {})
    return parse_quantity({**resources.get("limits", {}), **resources.get("requests", {})}.get(name, 0))


def _names_of_hosts(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the pod's DNS settings and host aliases."""
    settings = spec.get("dnsConfig", {})
    servers, searches = settings.get("nameservers", ()), settings.get("searches", ())
    if spec.get("dnsPolicy") == "None" and not servers:
        where = f"{path}.dnsConfig{'.nameservers' if settings else ''}"
        yield where, "Required value: must provide at least one DNS nameserver when `dnsPolicy` is None"
    if len(servers) > _MOST_NAMESERVERS:
        yield f"{path}.dnsConfig.nameservers", f"Invalid value: must not have more than {_MOST_NAMESERVERS} nameservers"
    if len(searches) > _MOST_SEARCHES or len(" ".join(searches)) > _LONGEST_SEARCHES:
        rule = f"must not have more than {_MOST_SEARCHES} search paths and {_LONGEST_SEARCHES} characters"
        yield f"{path}.dnsConfig.searches", f"Invalid value: {rule}"
    for i, option in enumerate(settings.get("options", ())):
        if not option.get("name"):
            yield f"{path}.dnsConfig.options[{i}]", "Required value: must not be empty"


def _by_plugins(path: str, spec: Json) -> Iterator[Broken]:
    """Yield fields that only the API server's own admission plugins may fill in."""
    yield from broken_amounts(f"{path}.overhead", spec.get("overhead", {}))
    if "overhead" in spec and not spec.get("runtimeClassName"):
        yield f"{path}.overhead", "Forbidden: Pod Overhead set without corresponding RuntimeClass defined Overhead"


def _gates(path: str, spec: Json) -> Iterator[Broken]:
    gates = [gate["name"] for gate in spec.get("schedulingGates", ())]
    for i in repeated(gates):
        yield f"{path}.schedulingGates[{i}]", f"Duplicate value: {shown(gates[i])}"
    if gates and spec.get("nodeName"):
        yield f"{path}.nodeName", "Forbidden: cannot be set until all schedulingGates have been cleared"


def _claims(path: str, claims: Any) -> Iterator[Broken]:
    for i in repeated([claim["name"] for claim in claims]):
        yield f"{path}[{i}]", f"Duplicate value: {shown(claims[i]['name'])}"
    for i, claim in enumerate(claims):
        given = [each for each in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(each)]
        if len(given) != 1:
            rule = "must specify exactly one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield f"{path}[{i}]", f"Invalid value: {rule}"
