"""Checks one container as the API server does: its ports, resources, probes and hooks."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.wording import shown
from gputile.core.kube_predicates.pod_requests import is_pod_level
from gputile.tools.simulator.rules.pods.environment import broken_environment
from gputile.tools.simulator.rules.pods.security import broken_container_security
from gputile.tools.simulator.rules.pods.volumes import broken_mounts
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_qualified_name
from gputile.tools.simulator.rules.values.numbers import broken_least, one_of
from gputile.tools.simulator.rules.values.repeats import broken_repeats

# What a container may ask for without a domain before it.
_STANDARD: Final = ("cpu", "memory", "ephemeral-storage")
_HUGEPAGES: Final = "hugepages-"
_OF_QUOTAS: Final = "requests."  # before a resource's name in a ResourceQuota
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc")
_MOST_DEVICES: Final = (2**63 - 1) // 1000  # an API server counts in thousandths
_MOST_RULES: Final = 20
_MOST_CODES: Final = 255
_RESTARTING: Final = "RestartContainer"
_OF_WINDOWS: Final = ("SIGKILL", "SIGTERM")  # signals that end a container there
_OF_PODS: Final = ("spec.containers[", "spec.initContainers[")  # where they stand in a pod that is no template
_GRACE_PERIOD: Final = 30  # seconds that a pod has to end, where it names none


def broken_container(path: str, container: Json, spec: Json, volumes: Mapping[str, Json]) -> Iterator[Broken]:
    """Yield what is wrong with the container at ``path`` of the pod with ``spec`` and, by their names, ``volumes``."""
    image = container.get("image", "")
    if image != image.strip():
        yield f"{path}.image", f"Invalid value: {shown(image)}: must not have leading or trailing whitespace"
    yield from _restarts(path, container)
    yield from _ports(f"{path}.ports", container.get("ports", ()), on_host=bool(spec.get("hostNetwork")))
    yield from broken_environment(path, container, volumes)
    yield from broken_mounts(path, container, volumes)
    yield from broken_resources(f"{path}.resources", container.get("resources", {}))
    yield from _resizing(f"{path}.resizePolicy", container.get("resizePolicy", ()), spec.get("restartPolicy", ""))
    claimed = container.get("resources", {}).get("claims", ())
    claims = {each["name"] for each in spec.get("resourceClaims", ())} if claimed else ()
    for i, claim in enumerate(claimed):
        if claim["name"] not in claims:
            yield f"{path}.resources.claims[{i}]", f"Not found: {shown(claim['name'])}"
    for probe in _PROBES:
        if probe in container:
            yield from _probe(f"{path}.{probe}", container[probe], probe)
    yield from _hooks(f"{path}.lifecycle", container.get("lifecycle", {}), spec)
    yield from broken_container_security(path, container, spec)


def broken_init_container(path: str, container: Json) -> Iterator[Broken]:
    """Yield the rules for init containers that a container breaks."""
    if container.get("restartPolicy") != "Always":
        for field in ("lifecycle", *_PROBES):
            if field in container:
                yield f"{path}.{field}", "Forbidden: may not be set for init containers without restartPolicy=Always"
        for i, policy in enumerate(container.get("resizePolicy", ())):
            if policy["restartPolicy"] == _RESTARTING:
                rule = "must be 'NotRequired' for init containers without restartPolicy=Always"
                yield f"{path}.resizePolicy[{i}].restartPolicy", f"Invalid value: {shown(_RESTARTING)}: {rule}"


def broken_host_ports(path: str, containers: Sequence[Json], *, on_host: bool) -> Iterator[Broken]:
    """Yield the host ports that two of a pod's ``containers`` claim.

    ``on_host`` says that the pod uses the node's network, where each container port is a host port.
    """
    taken: set[tuple[Any, ...]] = set()
    for i, container in enumerate(containers):
        for j, port in enumerate(container.get("ports", ())):
            taking = port.get("hostPort") or (port["containerPort"] if on_host else 0)
            if not taking:
                continue
            place = (port.get("protocol", "TCP"), port.get("hostIP", ""), taking)
            if place in taken:
                said = shown("/".join(map(str, place)))
                yield f"{path}[{i}].ports[{j}].hostPort", f"Duplicate value: {said}"
            taken.add(place)


def broken_resources(path: str, resources: Json, *, whole_pod: bool = False) -> Iterator[Broken]:
    """Yield what is wrong with limits and requests; ``whole_pod`` says that they are those of a pod as a whole."""
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    broken = [
        *broken_amounts(f"{path}.limits", limits, whole_pod=whole_pod, of_container=True),
        *broken_amounts(f"{path}.requests", requests, whole_pod=whole_pod, of_container=True),
    ]
    yield from broken
    if broken:
        return
    asked = {**requests, **limits}
    if any(name.startswith(_HUGEPAGES) for name in asked) and not {"cpu", "memory"} & asked.keys():
        yield path, "Forbidden: HugePages require cpu or memory"
    for name, written in requests.items():
        where = f"{path}.requests"
        if name not in limits:
            if not is_overcommitted(name):
                yield f"{path}.limits", f"Required value: Limit must be set for non overcommitable resources ({name})"
            continue
        request, limit = parse_quantity(written), parse_quantity(limits[name])
        if not is_overcommitted(name) and request != limit:
            yield where, f"Invalid value: {shown(str(written))}: must be equal to {name} limit of {limits[name]}"
        elif request > limit:
            rule = f"must be less than or equal to {name} limit of {limits[name]}"
            yield where, f"Invalid value: {shown(str(written))}: {rule}"


def broken_amounts(
    path: str, amounts: Json, *, whole_pod: bool = False, of_container: bool = False
) -> Iterator[Broken]:
    """Yield what is wrong with amounts of resources."""
    for name, written in amounts.items():
        where = f"{path}[{shown(name)}]"
        if whole_pod and not is_pod_level(name):
            yield where, "a pod as a whole asks for cpu, memory and hugepages-* only: set it in a container"
            continue
        if why := broken_qualified_name(name):
            yield where, why
        elif of_container and not _is_for_containers(name):
            yield where, f"Invalid value: {shown(name)}: must be a standard resource for containers"
        yield from _amount(where, name, parse_quantity(written), written)


def _is_for_containers(name: str) -> bool:
    if "/" in name:
        return not name.startswith(_OF_QUOTAS)
    return name in _STANDARD or name.startswith(_HUGEPAGES)


def broken_container_resource(name: str) -> str | None:
    """Return why ``name`` is no resource that containers ask for; None where it is one."""
    if why := broken_qualified_name(name):
        return why
    if not _is_for_containers(name):
        return f"Invalid value: {shown(name)}: must be a standard resource for containers"
    return None


def is_extended(name: str) -> bool:
    """Return whether a resource is one of devices, which are counted in whole numbers."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith(_OF_QUOTAS)


def is_overcommitted(name: str) -> bool:
    """Return whether more of a resource may be promised than there is, as of CPU, and not of devices or huge pages."""
    return not (("/" in name and "kubernetes.io/" not in name) or name.startswith(_HUGEPAGES))


def _amount(path: str, name: str, value: Fraction, written: Any) -> Iterator[Broken]:
    if value < 0:
        yield path, f"Invalid value: {shown(str(written))}: must be greater than or equal to 0"
    elif "/" in name and "kubernetes.io/" not in name and (value.denominator != 1 or value > _MOST_DEVICES):
        rule = "must be an integer" + (f" of no more than {_MOST_DEVICES}" if value > _MOST_DEVICES else "")
        yield path, f"Invalid value: {shown(str(written))}: {rule}"
    elif name.startswith(_HUGEPAGES) and (not (page := _page(name)) or value % page != 0):
        size = name.removeprefix(_HUGEPAGES)
        yield path, f"Invalid value: {shown(str(written))}: must be a whole number of pages of {size}"


def _page(name: str) -> Fraction:
    """Return the size of a huge page in bytes; 0 if the name gives none."""
    try:
        size = parse_quantity(name.removeprefix(_HUGEPAGES))
    except QuantityError:
        size = Fraction(0)
    return max(size, Fraction(0))


def _resizing(path: str, policies: Any, of_pod: str) -> Iterator[Broken]:
    """Yield what is wrong with how a container is resized; ``of_pod`` is the restartPolicy of its pod."""
    yield from broken_repeats(path, policies, "resourceName")
    for i, policy in enumerate(policies):
        if policy["restartPolicy"] == _RESTARTING and of_pod == "Never":
            rule = "must be 'NotRequired' when the pod's `restartPolicy` is 'Never'"
            yield f"{path}[{i}].restartPolicy", f"Invalid value: {shown(_RESTARTING)}: {rule}"


def _restarts(path: str, container: Json) -> Iterator[Broken]:
    rules = container.get("restartPolicyRules", ())
    if rules and "restartPolicy" not in container:
        yield f"{path}.restartPolicy", "Required value: must specify restartPolicy when restart rules are used"
    for i, rule in enumerate(rules):
        where = f"{path}.restartPolicyRules[{i}]"
        if "exitCodes" not in rule:
            yield f"{where}.exitCodes", "Required value: must be specified"
        elif len(rule["exitCodes"].get("values", ())) > _MOST_CODES:
            yield f"{where}.exitCodes.values", f"Too many: must have at most {_MOST_CODES} items"
    if len(rules) > _MOST_RULES:
        yield f"{path}.restartPolicyRules", f"Too many: {len(rules)}: must have at most {_MOST_RULES} items"


def _ports(path: str, ports: Any, *, on_host: bool) -> Iterator[Broken]:
    yield from broken_repeats(path, ports, "name")
    for i, port in enumerate(ports):
        if on_host and port.get("hostPort") and port["hostPort"] != port["containerPort"]:
            rule = "must match `containerPort` when `hostNetwork` is true"
            yield f"{path}[{i}].hostPort", f"Invalid value: {port['hostPort']}: {rule}"


def _hooks(path: str, lifecycle: Json, spec: Json) -> Iterator[Broken]:
    period, of_pod = spec.get("terminationGracePeriodSeconds", _GRACE_PERIOD), path.startswith(_OF_PODS)
    yield from _stop_signal(path, lifecycle, spec)
    for hook in ("postStart", "preStop"):
        if hook not in lifecycle:
            continue
        yield from _handler(f"{path}.{hook}", lifecycle[hook], (*_HANDLERS, "sleep"))
        seconds = lifecycle[hook].get("sleep", {}).get("seconds", 0)
        if not 0 <= seconds <= (1 if period < 0 and of_pod else period):  # a pod's negative one is 1 to an API server
            rule = f"must be 0 to terminationGracePeriodSeconds ({period})"
            yield f"{path}.{hook}.sleep.seconds", f"Invalid value: {seconds}: {rule}"


def _stop_signal(path: str, lifecycle: Json, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the signal that ends a container; which there are depends on the operating system."""
    signal, system = lifecycle.get("stopSignal"), spec.get("os", {}).get("name")
    if signal is not None and not system:
        yield f"{path}.stopSignal", "Forbidden: may not be set for containers with empty `spec.os.name`"
    elif signal is not None and system == "windows":
        yield from one_of(f"{path}.stopSignal", signal, _OF_WINDOWS)


def _probe(path: str, probe: Json, kind: str) -> Iterator[Broken]:
    yield from _handler(path, probe, _HANDLERS)
    if kind != "readinessProbe":
        yield from broken_least(path, probe, 1, "terminationGracePeriodSeconds")
        if probe.get("successThreshold", 1) not in (0, 1):
            yield f"{path}.successThreshold", f"Invalid value: {probe['successThreshold']}: must be 1"
    elif "terminationGracePeriodSeconds" in probe:
        yield f"{path}.terminationGracePeriodSeconds", "Invalid value: must not be set for readinessProbes"


def _handler(path: str, owner: Json, kinds: Sequence[str]) -> Iterator[Broken]:
    """Yield what is wrong with what a probe or a hook does."""
    given = [kind for kind in kinds if kind in owner]
    if not given:
        yield path, "Required value: must specify a handler type"
    if len(given) > 1:
        yield f"{path}.{given[1]}", "Forbidden: may not specify more than 1 handler type"
