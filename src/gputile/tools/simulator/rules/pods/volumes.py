"""Checks a pod's volumes, and where containers mount them, as the API server does."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.tools.simulator.rules.pods.claims import broken_claim
from gputile.tools.simulator.rules.pods.environment import broken_field_reference, broken_resource_reference
from gputile.tools.simulator.rules.pods.rare_volumes import RARE_SOURCES, broken_iscsi_interface
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.names import broken_annotations, broken_labels, broken_subdomain
from gputile.tools.simulator.rules.values.repeats import broken_repeats

_BLOCKS: Final = ("persistentVolumeClaim", "ephemeral")  # what a container can have as a device


def broken_volumes(path: str, volumes: Any) -> Iterator[Broken]:
    """Yield what is wrong with the volumes of a pod."""
    yield from broken_repeats(path, volumes, "name")
    for i, volume in enumerate(volumes):
        where = f"{path}[{i}]"
        if "iscsi" in volume and (why := broken_iscsi_interface(volume["name"], volume["iscsi"])):
            yield f"{where}.name", why
        sources = [field for field in volume if field != "name"]
        if len(sources) > 1:
            yield f"{where}.{sources[1]}", "Forbidden: may not specify more than 1 volume type"
        for source in sources:
            if source in _SOURCES:
                yield from _SOURCES[source](f"{where}.{source}", volume[source])


def broken_claim_names(path: str, pod: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the claims of the volumes of the pod that is called ``pod``, "" where that is not known.

    An ephemeral volume's claim is called POD-VOLUME. An API server takes a longer name than a claim may have, and the
    pod then waits for ever.
    """
    volumes = spec.get("volumes", ()) if pod else ()
    made = {f"{pod}-{each['name']}" for each in volumes if "ephemeral" in each}
    for i, volume in enumerate(volumes):
        claim = volume.get("persistentVolumeClaim", {}).get("claimName", "")
        if claim in made:
            rule = "must not reference a PVC that gets created for an ephemeral volume"
            yield f"{path}[{i}].persistentVolumeClaim.claimName", f"Invalid value: {shown(claim)}: {rule}"
        if "ephemeral" in volume and (why := broken_subdomain(f"{pod}-{volume['name']}")):
            yield f"{path}[{i}].name", f"the claim that its pod waits for cannot be made: {why}"


def broken_mounts(path: str, container: Json, volumes: Mapping[str, Json]) -> Iterator[Broken]:
    """Yield what is wrong with the mounts of the container at ``path``; ``volumes`` are those of its pod."""
    mounts, devices = container.get("volumeMounts", ()), container.get("volumeDevices", ())
    places: set[str] = set()
    taken = {field: {device[field] for device in devices} for field in ("name", "devicePath")}
    for i, mount in enumerate(mounts):
        where = f"{path}.volumeMounts[{i}]"
        if mount["name"] not in volumes:
            yield f"{where}.name", f"Not found: {shown(mount['name'])}"
        if mount["name"] in taken["name"]:
            yield f"{where}.name", f"Invalid value: {shown(mount['name'])}: must not be among volumeDevices too"
        if mount["mountPath"] in places or mount["mountPath"] in taken["devicePath"]:
            yield f"{where}.mountPath", f"Invalid value: {shown(mount['mountPath'])}: must be unique"
        places.add(mount["mountPath"])
        yield from _mount(where, mount, container)
    yield from _devices(f"{path}.volumeDevices", devices, volumes)


def _mount(path: str, mount: Json, container: Json) -> Iterator[Broken]:
    if mount.get("subPath") and mount.get("subPathExpr"):
        yield f"{path}.subPathExpr", "Invalid value: subPathExpr and subPath are mutually exclusive"
    propagation = mount.get("mountPropagation", "None")
    if propagation == "Bidirectional" and not container.get("securityContext", {}).get("privileged"):
        yield f"{path}.mountPropagation", "Forbidden: Bidirectional is available only to privileged containers"
    recursive = mount.get("recursiveReadOnly", "Disabled")
    if recursive != "Disabled" and not mount.get("readOnly"):
        yield f"{path}.recursiveReadOnly", "Forbidden: may only be specified when readOnly is true"
    elif recursive != "Disabled" and propagation not in ("None", ""):
        yield f"{path}.recursiveReadOnly", "Forbidden: may only be specified when mountPropagation is None"


def _devices(path: str, devices: Any, volumes: Mapping[str, Json]) -> Iterator[Broken]:
    names: set[str] = set()
    places: set[str] = set()
    for i, device in enumerate(devices):
        name, place = device["name"], device["devicePath"]
        if name not in volumes:
            yield f"{path}[{i}].name", f"Not found: {shown(name)}"
        elif not any(kind in volumes[name] for kind in _BLOCKS):
            rule = "only a persistentVolumeClaim or ephemeral volume can be a device"
            yield f"{path}[{i}].name", f"Invalid value: {shown(name)}: {rule}"
        if name in names:
            yield f"{path}[{i}].name", f"Invalid value: {shown(name)}: must be unique"
        if place in places:
            yield f"{path}[{i}].devicePath", f"Invalid value: {shown(place)}: must be unique"
        names.add(name)
        places.add(place)


def _empty_dir(path: str, source: Json) -> Iterator[Broken]:
    size = source.get("sizeLimit")
    if size is not None and parse_quantity(size) < 0:
        yield f"{path}.sizeLimit", "Forbidden: SizeLimit field must be a valid resource quantity"


def _downward(path: str, source: Json) -> Iterator[Broken]:
    for i, item in enumerate(source.get("items", ())):
        where = f"{path}.items[{i}]"
        if ("fieldRef" in item) == ("resourceFieldRef" in item):
            yield where, "Invalid value: must specify exactly one of fieldRef and resourceFieldRef"
        if "fieldRef" in item:
            yield from broken_field_reference(f"{where}.fieldRef", item["fieldRef"], in_a_file=True)
        if "resourceFieldRef" in item:
            reference = item["resourceFieldRef"]
            yield from broken_resource_reference(f"{where}.resourceFieldRef", reference, in_a_file=True)


def _projected(path: str, source: Json) -> Iterator[Broken]:
    files: set[str] = set()
    for i, part in enumerate(source.get("sources", ())):
        where = f"{path}.sources[{i}]"
        if len(part) > 1:
            yield where, "Forbidden: may not specify more than 1 volume type per source"
        for kind, found in part.items():
            if kind == "downwardAPI":
                yield from _downward(f"{where}.{kind}", found)
            made = [item["path"] for item in found.get("items", ())]
            # An API server looks at no token's path here.
            made += [found["path"]] if found.get("path") and kind != "serviceAccountToken" else []
            for name in made:
                if name in files:
                    yield f"{where}.{kind}", f"Invalid value: {shown(name)}: conflicting duplicate paths"
                files.add(name)


def _ephemeral(path: str, source: Json) -> Iterator[Broken]:
    template = source.get("volumeClaimTemplate")
    if template is None:
        yield f"{path}.volumeClaimTemplate", "Required value"
        return
    labels = template.get("metadata", {}).get("labels", {})
    yield from broken_labels(f"{path}.volumeClaimTemplate.metadata.labels", labels)
    annotations = template.get("metadata", {}).get("annotations", {})
    yield from broken_annotations(f"{path}.volumeClaimTemplate.metadata.annotations", annotations)
    for field, value in template.get("metadata", {}).items():
        if value != "" and field not in ("labels", "annotations"):
            yield f"{path}.volumeClaimTemplate.metadata.{field}", "Forbidden: cannot be set"
    yield from broken_claim(f"{path}.volumeClaimTemplate.spec", template["spec"], template=True)


def _csi(path: str, source: Json) -> Iterator[Broken]:
    if "nodePublishSecretRef" in source:
        name = source["nodePublishSecretRef"].get("name", "")
        if why := broken_subdomain(name) if name else "Required value":
            yield f"{path}.nodePublishSecretRef.name", why


_SOURCES: Final[dict[str, Callable[[str, Json], Iterator[Broken]]]] = {
    "csi": _csi,
    "downwardAPI": _downward,
    "emptyDir": _empty_dir,
    "ephemeral": _ephemeral,
    "projected": _projected,
    **RARE_SOURCES,
}
