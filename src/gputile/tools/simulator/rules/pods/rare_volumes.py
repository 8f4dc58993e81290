"""Checks volumes of the systems that Kubernetes once had drivers for, as the API server does."""

from collections.abc import Callable, Iterator
from typing import Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import MISSING, Broken, Json
from gputile.tools.simulator.rules.values.numbers import outside

_LONGEST_TENANT: Final = 64
_LONGEST_INTERFACE: Final = 64
_RESERVED: Final = (".kubernetes.io", ".k8s.io")


def _named_secret(path: str, source: Json) -> Iterator[Broken]:
    if "secretRef" in source and not source["secretRef"].get("name"):
        yield f"{path}.secretRef.name", MISSING


def _azure_disk(path: str, source: Json) -> Iterator[Broken]:
    managed, uri = source.get("kind") == "Managed", source["diskURI"]
    start = "/subscriptions/" if managed else "https://"
    if not uri.startswith(start):
        yield f"{path}.diskURI", f"Invalid value: {shown(uri)}: must start with {start}"


def _iscsi(path: str, source: Json) -> Iterator[Broken]:
    if (source.get("chapAuthDiscovery") or source.get("chapAuthSession")) and "secretRef" not in source:
        yield f"{path}.secretRef", "Required value"


def broken_iscsi_interface(name: str, source: Json) -> str | None:
    """Return why the volume ``name`` cannot have an iSCSI interface of its own; None where it can, or needs none."""
    if "initiatorName" in source and len(f"{name}:{source['targetPortal']}") > _LONGEST_INTERFACE:
        rule = f"with targetPortal it must be under {_LONGEST_INTERFACE} characters if there is an initiatorName"
        return f"Invalid value: {shown(name)}: {rule}"
    return None


def _fibre_channel(path: str, source: Json) -> Iterator[Broken]:
    if bool(source.get("targetWWNs")) == bool(source.get("wwids")):
        yield f"{path}.targetWWNs", "Required value: must specify either targetWWNs or wwids, but not both"
    elif source.get("targetWWNs") and "lun" not in source:
        yield f"{path}.lun", "Required value: lun is required if targetWWNs is specified"
    elif source.get("targetWWNs") and (why := outside(source["lun"], 0, 255)):
        yield f"{path}.lun", why


def _flocker(path: str, source: Json) -> Iterator[Broken]:
    if bool(source.get("datasetName")) == bool(source.get("datasetUUID")):
        yield path, "Required value: one of datasetName and datasetUUID is required"
    if "/" in source.get("datasetName", ""):
        yield f"{path}.datasetName", f"Invalid value: {shown(source['datasetName'])}: must not contain '/'"


def _quobyte(path: str, source: Json) -> Iterator[Broken]:
    if len(source.get("tenant", "")) > _LONGEST_TENANT:
        rule = f"must be a UUID of no more than {_LONGEST_TENANT} characters"
        yield f"{path}.tenant", f"Invalid value: {shown(source['tenant'])}: {rule}"
    elif not all(map(_is_host_and_port, source["registry"].split(","))):
        rule = "must be a host:port pair or multiple pairs separated by commas"
        yield f"{path}.registry", f"Invalid value: {shown(source['registry'])}: {rule}"


def _is_host_and_port(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1].replace(":", "")
    return bool(colon) and not set(host + port) & set("[]:")


def _flex_volume(path: str, source: Json) -> Iterator[Broken]:
    for option in source.get("options", {}):
        if f".{option.partition('/')[0].lower()}".endswith(_RESERVED):
            rule = "kubernetes.io and k8s.io namespaces are reserved"
            yield f"{path}.options[{shown(option)}]", f"Invalid value: {shown(option)}: {rule}"


RARE_SOURCES: Final[dict[str, Callable[[str, Json], Iterator[Broken]]]] = {
    "azureDisk": _azure_disk,
    "cinder": _named_secret,
    "fc": _fibre_channel,
    "flexVolume": _flex_volume,
    "flocker": _flocker,
    "iscsi": _iscsi,
    "quobyte": _quobyte,
    "storageos": _named_secret,
}
