"""What the API server demands of a pod beyond the types of its fields (k8s.io/kubernetes, pkg/apis/core/validation).

The rules read manifests as they are written, after their fields were found right. Their words are the API server's, as
far as these help a reader.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.core.kube_predicates.pod_requests import is_pod_level
from gputile.tools.simulator.affinity_rules import broken_affinity
from gputile.tools.simulator.fields import Broken
from gputile.tools.simulator.names import (
    broken_annotations,
    broken_label_name,
    broken_label_value,
    broken_labels,
    broken_port_name,
    broken_qualified_name,
    broken_subdomain,
)

Json = Mapping[str, Any]
# What a container may ask for without a domain before it.
_STANDARD: Final = ("cpu", "memory", "ephemeral-storage")
_HUGEPAGES: Final = "hugepages-"
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc")
_USERS: Final = ("runAsUser", "runAsGroup", "fsGroup")
# What a variable may be set to of its pod.
_POD_FIELDS: Final = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])|spec\.(nodeName|serviceAccountName)"
    r"|status\.(hostIPs?|podIPs?)"
)
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}", re.ASCII)  # of a ConfigMap or Secret
_ENVIRONMENT_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


def broken_metadata(path: str, metadata: Json) -> Iterator[Broken]:
    """Yield what is wrong with labels and annotations."""
    yield from broken_labels(f"{path}.labels", metadata.get("labels", {}))
    yield from broken_annotations(f"{path}.annotations", metadata.get("annotations", {}))


def broken_pod_spec(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the spec of a pod or of a template, which stands at ``path``."""
    volumes = {each["name"] for each in spec.get("volumes", ())}
    yield from _volumes(f"{path}.volumes", spec.get("volumes", ()))
    claims = {each["name"] for each in spec.get("resourceClaims", ())}
    names: set[str] = set()
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            where = f"{path}.{kind}[{i}]"
            name = container["name"]
            if name in names:
                yield f"{where}.name", f"Duplicate value: {shown(name)}"
            names.add(name)
            yield from _container(where, container, volumes, claims)
            if kind == "initContainers":
                yield from _init_container(where, container)
    if spec.get("ephemeralContainers"):
        yield f"{path}.ephemeralContainers", "Forbidden: cannot be set on create"
    if spec.get("resources"):
        yield from _resources(f"{path}.resources", spec["resources"], whole_pod=True)
    yield from _amounts(f"{path}.overhead", spec.get("overhead", {}))
    yield from broken_labels(f"{path}.nodeSelector", spec.get("nodeSelector", {}))
    yield from _spec_fields(path, spec)
    yield from _gates(path, spec)
    yield from _tolerations(f"{path}.tolerations", spec.get("tolerations", ()))
    yield from _claims(f"{path}.resourceClaims", spec.get("resourceClaims", ()))
    yield from broken_affinity(path, spec)


def _spec_fields(path: str, spec: Json) -> Iterator[Broken]:
    for field in ("nodeName", "serviceAccountName", "priorityClassName", "runtimeClassName"):
        if spec.get(field) and (why := broken_subdomain(spec[field])):
            yield f"{path}.{field}", why
    for field in ("hostname", "subdomain"):
        if spec.get(field) and (why := broken_label_name(spec[field])):
            yield f"{path}.{field}", why
    yield from _within(path, spec, "activeDeadlineSeconds", 1)
    for field in _USERS:
        yield from _within(f"{path}.securityContext", spec.get("securityContext", {}), field, 0)


def _gates(path: str, spec: Json) -> Iterator[Broken]:
    gates: set[str] = set()
    for i, gate in enumerate(spec.get("schedulingGates", ())):
        where = f"{path}.schedulingGates[{i}]"
        if why := broken_qualified_name(gate["name"]):
            yield f"{where}.name", why
        if gate["name"] in gates:
            yield where, f"Duplicate value: {shown(gate['name'])}"
        gates.add(gate["name"])
    if gates and spec.get("nodeName"):
        yield f"{path}.nodeName", "Forbidden: cannot be set until all schedulingGates have been cleared"


def _tolerations(path: str, tolerations: Any) -> Iterator[Broken]:
    for i, toleration in enumerate(tolerations):
        where = f"{path}[{i}]"
        if toleration.get("key") and (why := broken_qualified_name(toleration["key"])):
            yield f"{where}.key", why
        if why := broken_label_value(toleration.get("value", "")):
            yield f"{where}.value", why
        if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
            rule = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield f"{where}.effect", f"Invalid value: {shown(toleration.get('effect', ''))}: {rule}"


def _claims(path: str, claims: Any) -> Iterator[Broken]:
    names: set[str] = set()
    for i, claim in enumerate(claims):
        where = f"{path}[{i}]"
        if claim["name"] in names:
            yield where, f"Duplicate value: {shown(claim['name'])}"
        names.add(claim["name"])
        given = [each for each in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(each)]
        if len(given) != 1:
            yield where, "Invalid value: must specify exactly one of: `resourceClaimName`, `resourceClaimTemplateName`"


def _within(path: str, owner: Json, field: str, least: int) -> Iterator[Broken]:
    value = owner.get(field)
    if value is not None and not least <= value < 2**31:
        yield f"{path}.{field}", f"Invalid value: {value}: must be between {least} and {2**31 - 1}, inclusive"


def _at_least(path: str, owner: Json, field: str, least: int) -> Iterator[Broken]:
    value = owner.get(field)
    if value is not None and value < least:
        yield f"{path}.{field}", f"Invalid value: {value}: must be greater than or equal to {least}"


def _volumes(path: str, volumes: Any) -> Iterator[Broken]:
    names: set[str] = set()
    for i, volume in enumerate(volumes):
        where, name = f"{path}[{i}]", volume["name"]
        if why := broken_label_name(name):
            yield f"{where}.name", why
        if name in names:
            yield f"{where}.name", f"Duplicate value: {shown(name)}"
        names.add(name)
        sources = [field for field in volume if field != "name"]
        if len(sources) > 1:
            yield f"{where}.{sources[1]}", "Forbidden: may not specify more than 1 volume type"
        if "configMap" in volume and not volume["configMap"].get("name"):
            yield f"{where}.configMap.name", "Required value"
        size = volume.get("emptyDir", {}).get("sizeLimit")
        if size is not None and parse_quantity(size) < 0:
            yield f"{where}.emptyDir.sizeLimit", "Forbidden: SizeLimit field must be a valid resource quantity"
        if "hostPath" in volume and ".." in volume["hostPath"]["path"].split("/"):
            yield f"{where}.hostPath.path", f"Invalid value: {shown(volume['hostPath']['path'])}: must not contain '..'"


def _container(path: str, container: Json, volumes: set[str], claims: set[str]) -> Iterator[Broken]:
    if why := broken_label_name(container["name"]):
        yield f"{path}.name", why
    image = container.get("image", "")
    if not image:
        yield f"{path}.image", "Required value"
    elif image != image.strip():
        yield f"{path}.image", f"Invalid value: {shown(image)}: must not have leading or trailing whitespace"
    yield from _ports(f"{path}.ports", container.get("ports", ()))
    yield from _environment(f"{path}.env", container.get("env", ()))
    yield from _environment_of_others(f"{path}.envFrom", container.get("envFrom", ()))
    yield from _mounts(path, container, volumes)
    yield from _resources(f"{path}.resources", container.get("resources", {}))
    for i, claim in enumerate(container.get("resources", {}).get("claims", ())):
        if claim["name"] not in claims:
            yield f"{path}.resources.claims[{i}]", f"Not found: {shown(claim['name'])}"
    for probe in _PROBES:
        if probe in container:
            yield from _probe(f"{path}.{probe}", container[probe], probe)
    for hook in ("postStart", "preStop"):
        if hook in container.get("lifecycle", {}):
            yield from _handler(f"{path}.lifecycle.{hook}", container["lifecycle"][hook], (*_HANDLERS, "sleep"))
    for field in _USERS:
        yield from _within(f"{path}.securityContext", container.get("securityContext", {}), field, 0)


def _init_container(path: str, container: Json) -> Iterator[Broken]:
    policy = container.get("restartPolicy")
    if policy not in (None, "Always", "Never", "OnFailure"):
        supported = 'supported values: "Always", "Never", "OnFailure"'
        yield f"{path}.restartPolicy", f"Unsupported value: {shown(policy)}: {supported}"
    if policy != "Always":
        for field in ("lifecycle", *_PROBES):
            if field in container:
                yield f"{path}.{field}", "Forbidden: may not be set for init containers without restartPolicy=Always"


def _ports(path: str, ports: Any) -> Iterator[Broken]:
    names: set[str] = set()
    for i, port in enumerate(ports):
        where = f"{path}[{i}]"
        name = port.get("name", "")
        if name and (why := broken_port_name(name)):
            yield f"{where}.name", why
        if name and name in names:
            yield f"{where}.name", f"Duplicate value: {shown(name)}"
        names.add(name)
        for field in ("containerPort", "hostPort"):
            if field in port and not 1 <= port[field] <= 65535 and (field == "containerPort" or port[field]):
                yield f"{where}.{field}", f"Invalid value: {port[field]}: must be between 1 and 65535, inclusive"


def _environment(path: str, variables: Any) -> Iterator[Broken]:
    for i, variable in enumerate(variables):
        where, name = f"{path}[{i}]", variable["name"]
        if "=" in name or not name.isascii() or not name.isprintable():
            yield f"{where}.name", f"Invalid value: {shown(name)}: must be printable ASCII characters except '='"
        source = variable.get("valueFrom")
        if source is None:
            continue
        given = [field for field in _ENVIRONMENT_SOURCES if field in source]
        if len(given) != 1:
            many = "may not have more than one field specified at a time" if given else "must specify one of: "
            yield f"{where}.valueFrom", f"Invalid value: {many}{'' if given else ', '.join(_ENVIRONMENT_SOURCES)}"
        yield from _references(f"{where}.valueFrom", source)
        if given and variable.get("value"):
            yield f"{where}.valueFrom", 'Invalid value: "": may not be specified when `value` is not empty'


def _references(path: str, source: Json) -> Iterator[Broken]:
    """Yield what is wrong with where a variable's value comes from."""
    field = source.get("fieldRef", {}).get("fieldPath")
    if field is not None and not _POD_FIELDS.fullmatch(field):
        yield f"{path}.fieldRef.fieldPath", f"Invalid value: {shown(field)}: field label not supported"
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind not in source:
            continue
        if why := broken_subdomain(source[kind].get("name", "")):
            yield f"{path}.{kind}.name", why
        if not _KEY.fullmatch(source[kind]["key"]):
            rule = "must be letters, digits, '-', '_' and '.'"
            yield f"{path}.{kind}.key", f"Invalid value: {shown(source[kind]['key'])}: {rule}"


def _environment_of_others(path: str, sources: Any) -> Iterator[Broken]:
    for i, source in enumerate(sources):
        given = [kind for kind in ("configMapRef", "secretRef") if kind in source]
        if len(given) != 1:
            yield f"{path}[{i}]", 'Invalid value: "": must specify one of: `configMapRef` or `secretRef`'
        for kind in given:
            name = source[kind].get("name", "")
            why = broken_subdomain(name) if name else "Required value"
            if why:
                yield f"{path}[{i}].{kind}.name", why


def _mounts(path: str, container: Json, volumes: set[str]) -> Iterator[Broken]:
    places: set[str] = set()
    for i, mount in enumerate(container.get("volumeMounts", ())):
        where = f"{path}.volumeMounts[{i}]"
        if mount["name"] not in volumes:
            yield f"{where}.name", f"Not found: {shown(mount['name'])}"
        if mount["mountPath"] in places:
            yield f"{where}.mountPath", f"Invalid value: {shown(mount['mountPath'])}: must be unique"
        places.add(mount["mountPath"])
        if mount.get("subPath") and mount.get("subPathExpr"):
            yield f"{where}.subPathExpr", "Invalid value: subPathExpr and subPath are mutually exclusive"
    for i, device in enumerate(container.get("volumeDevices", ())):
        if device["name"] not in volumes:
            yield f"{path}.volumeDevices[{i}].name", f"Not found: {shown(device['name'])}"


def _probe(path: str, probe: Json, kind: str) -> Iterator[Broken]:
    yield from _handler(path, probe, _HANDLERS)
    for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        yield from _at_least(path, probe, field, 0)
    if kind != "readinessProbe" and probe.get("successThreshold", 1) not in (0, 1):
        yield f"{path}.successThreshold", f"Invalid value: {probe['successThreshold']}: must be 1"


def _handler(path: str, owner: Json, kinds: Sequence[str]) -> Iterator[Broken]:
    """Yield what is wrong with what a probe or a hook does."""
    given = [kind for kind in kinds if kind in owner]
    if not given:
        yield path, "Required value: must specify a handler type"
    if len(given) > 1:
        yield f"{path}.{given[1]}", "Forbidden: may not specify more than 1 handler type"
    if "exec" in owner and not owner["exec"].get("command"):
        yield f"{path}.exec.command", "Required value"
    for kind in ("httpGet", "tcpSocket", "grpc"):
        if kind in owner:
            port = owner[kind]["port"]
            wrong = broken_port_name(port) if isinstance(port, str) else ""
            if isinstance(port, int | float) and not 1 <= port <= 65535:
                wrong = f"Invalid value: {port}: must be between 1 and 65535, inclusive"
            if wrong:
                yield f"{path}.{kind}.port", wrong


def _resources(path: str, resources: Json, *, whole_pod: bool = False) -> Iterator[Broken]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    broken = [
        *_amounts(f"{path}.limits", limits, whole_pod=whole_pod, of_container=True),
        *_amounts(f"{path}.requests", requests, whole_pod=whole_pod, of_container=True),
    ]
    yield from broken
    if broken:
        return
    for name, written in requests.items():
        where = f"{path}.requests"
        if name not in limits:
            if _is_extended(name):
                yield f"{path}.limits", f"Required value: Limit must be set for non overcommitable resources ({name})"
            continue
        request, limit = parse_quantity(written), parse_quantity(limits[name])
        if _is_extended(name) and request != limit:
            yield where, f"Invalid value: {shown(str(written))}: must be equal to {name} limit of {limits[name]}"
        elif request > limit:
            rule = f"must be less than or equal to {name} limit of {limits[name]}"
            yield where, f"Invalid value: {shown(str(written))}: {rule}"


def _is_extended(name: str) -> bool:
    """Return whether a resource cannot be asked for beyond what is there: devices, and huge pages."""
    return ("/" in name and "kubernetes.io/" not in name) or name.startswith(_HUGEPAGES)


def _amounts(path: str, amounts: Json, *, whole_pod: bool = False, of_container: bool = False) -> Iterator[Broken]:
    for name, written in amounts.items():
        where = f"{path}[{shown(name)}]"
        if whole_pod and not is_pod_level(name):
            yield where, "a pod as a whole asks for cpu, memory and hugepages-* only: set it in a container"
            continue
        if why := broken_qualified_name(name):
            yield where, why
        elif of_container and "/" not in name and name not in _STANDARD and not name.startswith(_HUGEPAGES):
            yield where, f"Invalid value: {shown(name)}: must be a standard resource for containers"
        yield from _amount(where, name, parse_quantity(written), written)


def _amount(path: str, name: str, value: Fraction, written: Any) -> Iterator[Broken]:
    if value < 0:
        yield path, f"Invalid value: {shown(str(written))}: must be greater than or equal to 0"
    elif "/" in name and "kubernetes.io/" not in name and value.denominator != 1:
        yield path, f"Invalid value: {shown(str(written))}: must be an integer"
