"""Checks Ingresses and NetworkPolicies (k8s.io/kubernetes, pkg/apis/networking/validation)."""

import re
from collections.abc import Iterator
from typing import Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.addresses import no_range, parse_address, parse_range
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import (
    broken_host,
    broken_path_segment,
    broken_port_name,
    broken_subdomain,
)
from gputile.tools.simulator.rules.values.numbers import broken_port

_CLASS: Final = "kubernetes.io/ingress.class"
_NOT_IN_PATHS: Final = ("//", "/./", "/../", "%2f", "%2F")
_NOT_AT_ENDS: Final = ("/..", "/.")
_DIRECTIONS: Final = {"ingress": "from", "egress": "to"}


def broken_ingress(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with an Ingress."""
    spec = body.get("spec", {})
    rules = spec.get("rules", ())
    if not rules and "defaultBackend" not in spec:
        yield "spec", "Invalid value: either `defaultBackend` or `rules` must be specified"
    if "defaultBackend" in spec:
        yield from _backend("spec.defaultBackend", spec["defaultBackend"])
    for i, rule in enumerate(rules):
        host = rule.get("host", "")
        if host and (why := _broken_rule_host(host)):
            yield f"spec.rules[{i}].host", why
        for j, path in enumerate(rule.get("http", {}).get("paths", ())):
            yield from _path(f"spec.rules[{i}].http.paths[{j}]", path)
    name = spec.get("ingressClassName")
    annotated = body.get("metadata", {}).get("annotations", {}).get(_CLASS)
    if None not in (name, annotated) and name != annotated:
        said = f"Invalid value: {shown(annotated)}: must match `ingressClassName` when both are specified"
        yield f"metadata.annotations[{shown(_CLASS)}]", said


def _broken_rule_host(host: str) -> str | None:
    if parse_address(re.sub(r"\b0+(?=[0-9])", "", host)) is not None:  # leading zeros are no mistake there
        return f"Invalid value: {shown(host)}: must be a DNS name, not an IP address"
    return broken_host(host)


def _path(where: str, path: Json) -> Iterator[Broken]:
    written = path.get("path", "")
    exactly = path["pathType"] != "ImplementationSpecific"
    if not written.startswith("/") and (written or exactly):
        yield f"{where}.path", f"Invalid value: {shown(written)}: must be an absolute path"
    if exactly and (any(each in written for each in _NOT_IN_PATHS) or written.endswith(_NOT_AT_ENDS)):
        rule = f"must not contain {', '.join(_NOT_IN_PATHS)}, or end with {' or '.join(_NOT_AT_ENDS)}"
        yield f"{where}.path", f"Invalid value: {shown(written)}: {rule}"
    yield from _backend(f"{where}.backend", path["backend"])


def _backend(path: str, backend: Json) -> Iterator[Broken]:
    if ("resource" in backend) == ("service" in backend):
        yield path, "Invalid value: must be a resource or a service"
    elif "resource" in backend:
        resource = backend["resource"]
        if "apiGroup" in resource and (why := broken_subdomain(resource["apiGroup"])):
            yield f"{path}.resource.apiGroup", why
        for field in ("kind", "name"):
            if why := broken_path_segment(resource[field]):
                yield f"{path}.resource.{field}", why
    else:
        yield from _service(f"{path}.service", backend["service"])


def _service(path: str, service: Json) -> Iterator[Broken]:
    name, number = service.get("port", {}).get("name", ""), service.get("port", {}).get("number", 0)
    if bool(name) == bool(number):
        yield f"{path}.port", "Required value: a name or a number, and not both"
    elif name and (why := broken_port_name(name)):
        yield f"{path}.port.name", why
    elif number and (why := broken_port(number)):
        yield f"{path}.port.number", why


def broken_network_policy(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a NetworkPolicy."""
    spec = body.get("spec", {})
    for direction, peers in _DIRECTIONS.items():
        for i, rule in enumerate(spec.get(direction, ())):
            where = f"spec.{direction}[{i}]"
            for j, port in enumerate(rule.get("ports", ())):
                yield from _policy_port(f"{where}.ports[{j}]", port)
            for j, peer in enumerate(rule.get(peers, ())):
                yield from _peer(f"{where}.{peers}[{j}]", peer)
    if len(spec.get("policyTypes", ())) > len(_DIRECTIONS):
        yield "spec.policyTypes", "Invalid value: may not specify more than two policyTypes"


def _policy_port(path: str, port: Json) -> Iterator[Broken]:
    number, end = port.get("port"), port.get("endPort")
    if end is not None and (number is None or isinstance(number, str)):
        yield f"{path}.endPort", f"Invalid value: {end}: may not be specified when `port` is no number"
    elif end is not None and number is not None:
        if why := broken_port(end):
            yield f"{path}.endPort", why
        if end < number:
            yield f"{path}.endPort", f"Invalid value: {end}: must be greater than or equal to `port`"


def _peer(path: str, peer: Json) -> Iterator[Broken]:
    selectors = [field for field in ("podSelector", "namespaceSelector") if field in peer]
    if "ipBlock" in peer:
        yield from _block(f"{path}.ipBlock", peer["ipBlock"])
        if selectors:
            yield path, "Forbidden: may not specify both ipBlock and another peer"
    elif not selectors:
        yield path, "Required value: must specify a peer"


def _block(path: str, block: Json) -> Iterator[Broken]:
    whole = parse_range(block["cidr"])
    if whole is None:
        yield f"{path}.cidr", no_range(block["cidr"])
        return
    for i, text in enumerate(block.get("except", ())):
        part = parse_range(text)
        if part is None:
            yield f"{path}.except[{i}]", no_range(text)
        elif whole.version != part.version or whole.prefixlen >= part.prefixlen or part[0] not in whole:
            yield f"{path}.except[{i}]", f"Invalid value: {shown(text)}: must be a strict subset of `cidr`"
