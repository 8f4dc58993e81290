"""Checks a container's environment, and what refers to fields of its pod, as the API server does."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_qualified_name, broken_subdomain

# What a variable may be set to of its pod, and what a file of a volume may hold of it.
_OF_POD: Final = re.compile(r"metadata\.(name|namespace|uid)")
_OF_RUNNING_POD: Final = re.compile(r"spec\.(nodeName|host|serviceAccountName)|status\.(hostIPs?|podIPs?)")
_ALL_LABELS: Final = ("metadata.labels", "metadata.annotations")
_ONE_LABEL: Final = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_RESOURCE: Final = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.*)")
_DIVISORS: Final = ("1", "1k", "1M", "1G", "1T", "1P", "1E")
_BINARY_DIVISORS: Final = ("1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
_DIVISORS_OF_CPU: Final = ("1m", "1")
# How a divisor may be written: the API server compares texts, and rewrites only some.
_WRITTEN: Final = re.compile(r"\s*(0|[1-9][0-9]*)(\.[0-9]+)?([num]|[kMGTPE]|[KMGTPE]i)?\s*", re.ASCII)
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}", re.ASCII)  # of a ConfigMap or Secret
_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


def broken_environment(path: str, container: Json, volumes: Mapping[str, Json]) -> Iterator[Broken]:
    """Yield what is wrong with the variables of the container at ``path``; ``volumes`` are its pod's, by name."""
    for i, variable in enumerate(container.get("env", ())):
        where, source = f"{path}.env[{i}]", variable.get("valueFrom")
        if source is None:
            continue
        given = [field for field in _SOURCES if field in source]
        if len(given) != 1:
            many = "may not have more than one field specified at a time" if given else "must specify one of: "
            yield f"{where}.valueFrom", f"Invalid value: {many}{'' if given else ', '.join(_SOURCES)}"
        yield from _references(f"{where}.valueFrom", source, volumes)
        if given and variable.get("value"):
            yield f"{where}.valueFrom", 'Invalid value: "": may not be specified when `value` is not empty'
    yield from _of_others(f"{path}.envFrom", container.get("envFrom", ()))


def broken_field_reference(path: str, reference: Json, *, in_a_file: bool) -> Iterator[Broken]:
    """Yield what is wrong with a ``fieldRef``; ``in_a_file`` says that it is one of a volume."""
    field = reference["fieldPath"]
    if reference.get("apiVersion", "v1") not in ("", "v1"):
        rule = 'the fields of pods are in version "v1"'
        yield f"{path}.apiVersion", f"Unsupported value: {shown(reference['apiVersion'])}: {rule}"
    label = _ONE_LABEL.fullmatch(field)
    if label is not None:
        kind, key = label.groups()
        if why := broken_qualified_name(key.lower() if kind == "annotations" else key):
            yield f"{path}.fieldPath", why
    elif not _OF_POD.fullmatch(field) and not (field in _ALL_LABELS if in_a_file else _OF_RUNNING_POD.fullmatch(field)):
        yield f"{path}.fieldPath", f"Invalid value: {shown(field)}: field label not supported"


def broken_resource_reference(path: str, reference: Json, *, in_a_file: bool) -> Iterator[Broken]:
    """Yield what is wrong with a ``resourceFieldRef``; ``in_a_file`` says that it is one of a volume."""
    if in_a_file and not reference.get("containerName"):
        yield f"{path}.containerName", "Required value"
    named = _RESOURCE.fullmatch(reference["resource"])
    if named is None:
        valid = "limits or requests of cpu, memory, ephemeral-storage, hugepages-*, as limits.cpu"
        yield f"{path}.resource", f"Unsupported value: {shown(reference['resource'])}: supported values: {valid}"
    elif "divisor" in reference and (divisor := parse_quantity(reference["divisor"])) != 0:
        written = str(reference["divisor"])
        divisors: tuple[str, ...] = _DIVISORS_OF_CPU if named[2] == "cpu" else (*_DIVISORS, *_BINARY_DIVISORS)
        alike = [each for each in divisors if each.endswith("i") == written.rstrip().endswith("i")]
        if not _WRITTEN.fullmatch(written) or divisor not in map(parse_quantity, alike):
            said = f"Unsupported value: {shown(written)}: supported values: {', '.join(divisors)}"
            yield f"{path}.divisor", said


def _broken_key(key: str) -> str | None:
    if not _KEY.fullmatch(key):
        return f"Invalid value: {shown(key)}: must be letters, digits, '-', '_' and '.'"
    if key == "." or key.startswith(".."):
        return f"Invalid value: {shown(key)}: must not be '.', or start with '..'"
    return None


def _references(path: str, source: Json, volumes: Mapping[str, Json]) -> Iterator[Broken]:
    """Yield what is wrong with where a variable's value comes from."""
    if "fieldRef" in source:
        yield from broken_field_reference(f"{path}.fieldRef", source["fieldRef"], in_a_file=False)
    if "resourceFieldRef" in source:
        yield from broken_resource_reference(f"{path}.resourceFieldRef", source["resourceFieldRef"], in_a_file=False)
    for kind in ("configMapKeyRef", "secretKeyRef"):
        if kind not in source:
            continue
        if why := broken_subdomain(source[kind].get("name", "")):
            yield f"{path}.{kind}.name", why
        if why := _broken_key(source[kind]["key"]):
            yield f"{path}.{kind}.key", why
    if "fileKeyRef" in source:
        yield from _file(f"{path}.fileKeyRef", source["fileKeyRef"], volumes)


def _file(path: str, reference: Json, volumes: Mapping[str, Json]) -> Iterator[Broken]:
    """Yield what is wrong with the file of a volume that a variable is read from."""
    name = reference["volumeName"]
    if name not in volumes:
        yield f"{path}.volumeName", f"Not found: {shown(name)}"
    elif "emptyDir" not in volumes[name] and len(volumes[name]) > 1:  # one without a source is an emptyDir
        yield f"{path}.volumeName", f"Invalid value: {shown(name)}: must be a volume of type emptyDir"


def _of_others(path: str, sources: Any) -> Iterator[Broken]:
    for i, source in enumerate(sources):
        given = [kind for kind in ("configMapRef", "secretRef") if kind in source]
        if len(given) != 1:
            yield f"{path}[{i}]", 'Invalid value: "": must specify one of: `configMapRef` or `secretRef`'
        for kind in given:
            name = source[kind].get("name", "")
            why = broken_subdomain(name.rstrip("-") or name) if name else "Required value"  # as where names begin
            if why:
                yield f"{path}[{i}].{kind}.name", why
