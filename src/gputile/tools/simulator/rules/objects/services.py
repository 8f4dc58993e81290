"""Checks Services as the API server does (k8s.io/kubernetes, pkg/apis/core/validation)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.addresses import broken_range, no_address, parse_address
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_qualified_name, broken_subdomain
from gputile.tools.simulator.rules.values.numbers import broken_port

_NODE_PORTS: Final = range(30000, 32768)  # where --service-node-port-range says nothing else
_LONGEST_AFFINITY: Final = 86400  # seconds
_HEADLESS: Final = "None"
_RANGES: Final = "service.beta.kubernetes.io/load-balancer-source-ranges"
_HINTS: Final = ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints")
_FAMILIES: Final = {"IPv4": 4, "IPv6": 6}


def broken_service(body: Json) -> Iterator[Broken]:
    """Yield what is wrong with a Service."""
    spec, annotations = body.get("spec", {}), body.get("metadata", {}).get("annotations", {})
    kind = spec.get("type") or "ClusterIP"
    mode, hints = (annotations.get(each) for each in _HINTS)
    if None not in (mode, hints) and mode != hints:
        yield f"metadata.annotations[{shown(_HINTS[0])}]", f"Invalid value: {shown(mode)}: must match {_HINTS[1]}"
    yield from _ports(spec, kind)
    if kind == "ExternalName":
        yield from _external_name(spec)
    else:
        yield from _addresses(spec, kind)
    yield from _affinity(spec)
    yield from _load_balancer(spec, kind, annotations)
    yield from _traffic(spec, kind)


def _ports(spec: Json, kind: str) -> Iterator[Broken]:
    ports: Sequence[Json] = spec.get("ports", ())
    if not ports and kind != "ExternalName" and not _is_headless(spec):
        yield "spec.ports", "Required value"
    taken: dict[str, set[Any]] = {"name": set(), "port": set(), "nodePort": set()}
    for i, port in enumerate(ports):
        path, protocol = f"spec.ports[{i}]", port.get("protocol") or "TCP"
        if len(ports) > 1 and not port.get("name"):
            yield f"{path}.name", "Required value: of several ports each has a name"
        if port.get("nodePort") and kind == "ClusterIP":
            yield f"{path}.nodePort", "Forbidden: may not be used when `type` is 'ClusterIP'"
        else:
            yield from _node_port(f"{path}.nodePort", port.get("nodePort", 0))
        keys = {"name": port.get("name"), "port": (protocol, port["port"])}
        if port.get("nodePort"):
            keys["nodePort"] = (protocol, port["nodePort"])
        for field, key in keys.items():
            if key and key in taken[field]:
                yield f"{path}.{field}", f"Duplicate value: {shown(str(port[field]))}"
            taken[field].add(key)


def _node_port(path: str, number: int) -> Iterator[Broken]:
    """Yield that a node opens no such port for Services; 0 lets the API server choose one."""
    if number and number not in _NODE_PORTS:
        rule = f"provided port is not in the default range {_NODE_PORTS[0]}-{_NODE_PORTS[-1]}"
        yield path, f"Invalid value: {number}: {rule}"


def _is_headless(spec: Json) -> bool:
    return bool(spec.get("clusterIP") == _HEADLESS or spec.get("clusterIPs") == [_HEADLESS])


def _external_name(spec: Json) -> Iterator[Broken]:
    for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if spec.get(field) or (field == "ipFamilyPolicy" and field in spec):
            yield f"spec.{field}", "Forbidden: may not be set for ExternalName services"
    name = spec.get("externalName", "").removesuffix(".")
    if why := broken_subdomain(name) if name else "Required value":
        yield "spec.externalName", why


def _addresses(spec: Json, kind: str) -> Iterator[Broken]:
    """Yield what is wrong with the addresses of a Service inside of the cluster."""
    first, written = spec.get("clusterIP", ""), spec.get("clusterIPs", ())
    if kind in ("LoadBalancer", "NodePort") and _is_headless(spec):
        yield "spec.clusterIPs[0]", f"Invalid value: \"None\": may not be set to 'None' for {kind} services"
    addresses = written or ([first] if first else [])
    if written and written[0] != first:
        rule = "first value must match `clusterIP`" if first else "must be empty when `clusterIP` is not specified"
        yield "spec.clusterIPs", f"Invalid value: {rule}"
    families = spec.get("ipFamilies", ())
    for i, family in enumerate(families):
        if family in families[:i]:
            yield f"spec.ipFamilies[{i}]", f"Duplicate value: {shown(family)}"
    if addresses == [_HEADLESS]:
        return
    if len(addresses) > len(_FAMILIES):
        yield "spec.clusterIPs", "Invalid value: may only hold up to 2 values"
    versions = []
    for i, address in enumerate(addresses):
        parsed = parse_address(address)
        if parsed is None:
            yield f"spec.clusterIPs[{i}]", no_address(address)
            continue
        if parsed.version in versions:
            yield "spec.clusterIPs", "Invalid value: may specify no more than one IP for each IP family"
        versions.append(parsed.version)
        if i < len(families) and _FAMILIES.get(families[i], parsed.version) != parsed.version:
            yield f"spec.clusterIPs[{i}]", f"Invalid value: {shown(address)}: expected {families[i]}"


def _affinity(spec: Json) -> Iterator[Broken]:
    if spec.get("sessionAffinity") == "ClientIP":
        seconds = spec.get("sessionAffinityConfig", {}).get("clientIP", {}).get("timeoutSeconds", 1)
        if not 0 < seconds <= _LONGEST_AFFINITY:
            rule = f"must be greater than 0 and no more than {_LONGEST_AFFINITY}"
            yield "spec.sessionAffinityConfig.clientIP.timeoutSeconds", f"Invalid value: {seconds}: {rule}"


def _load_balancer(spec: Json, kind: str, annotations: Mapping[str, str]) -> Iterator[Broken]:
    only = "Forbidden: may only be used when `type` is 'LoadBalancer'"
    balanced = kind == "LoadBalancer"
    if spec.get("loadBalancerSourceRanges"):
        where, ranges = "spec.loadBalancerSourceRanges", spec["loadBalancerSourceRanges"]
    else:
        where, text = f"metadata.annotations[{shown(_RANGES)}]", annotations.get(_RANGES)
        ranges = text.split(",") if text and text.strip() else ()
        if text is not None and not balanced:
            yield where, only
    if spec.get("loadBalancerSourceRanges") and not balanced:
        yield where, only
    for each in ranges:
        if why := broken_range(each.strip()):
            yield where, why
    for field in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
        if field in spec and not balanced:
            yield f"spec.{field}", only
    if balanced and "loadBalancerClass" in spec and (why := broken_qualified_name(spec["loadBalancerClass"])):
        yield "spec.loadBalancerClass", why


def _traffic(spec: Json, kind: str) -> Iterator[Broken]:
    """Yield what is wrong with where a Service's traffic may go."""
    outside = kind in ("LoadBalancer", "NodePort") or (kind == "ClusterIP" and bool(spec.get("externalIPs")))
    policy = spec.get("externalTrafficPolicy", "")
    if policy and not outside:
        rule = "may only be set for externally-accessible services"
        yield "spec.externalTrafficPolicy", f"Invalid value: {shown(policy)}: {rule}"
    port = spec.get("healthCheckNodePort", 0)
    if port and not (kind == "LoadBalancer" and policy == "Local"):
        rule = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield "spec.healthCheckNodePort", f"Invalid value: {port}: {rule}"
    elif port:
        where = "spec.healthCheckNodePort"
        yield from ((where, why),) if (why := broken_port(port)) else _node_port(where, port)
