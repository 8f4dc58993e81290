"""Checks the annotations that the API server reads on pods: profiles, mirror pods, tolerations, costs."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.pods.tolerations import broken_tolerations
from gputile.tools.simulator.rules.values.field_rules import broken_values
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.paths import broken_path_below

_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,9}", re.ASCII)
_MIRROR: Final = "kubernetes.io/config.mirror"
_TOLERATIONS: Final = "scheduler.alpha.kubernetes.io/tolerations"
_TOLERATION_FIELDS: Final = {"key": str, "operator": str, "value": str, "effect": str, "tolerationSeconds": int}
_APP_ARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP: Final = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_OF_CONTAINER: Final = "container.seccomp.security.alpha.kubernetes.io/"
_LOCAL: Final = "localhost/"
_DEFAULTS: Final = ("runtime/default", "docker/default")
_APP_ARMOR_PROFILES: Final = ("", "runtime/default", "unconfined")


def broken_pod_annotations(path: str, annotations: Mapping[str, str], spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with annotations at ``path`` that the API server reads on a pod with ``spec``."""
    cost = annotations.get(_DELETION_COST)
    if cost is not None and not (_WHOLE.fullmatch(cost) and -(2**31) <= int(cost) < 2**31):
        yield f"{path}[{shown(_DELETION_COST)}]", f"Invalid value: {shown(cost)}: must be a 32bit integer"
    if _MIRROR in annotations and not spec.get("nodeName"):
        said = f"Invalid value: {shown(annotations[_MIRROR])}"
        yield f"{path}[{shown(_MIRROR)}]", f"{said}: must set spec.nodeName if mirror pod annotation is set"
    if annotations.get(_TOLERATIONS):
        yield from _written_tolerations(f"{path}[{shown(_TOLERATIONS)}]", annotations[_TOLERATIONS])
    names = {each["name"] for kind in ("initContainers", "containers") for each in spec.get(kind, ())}
    for key, value in annotations.items():
        where = f"{path}[{shown(key)}]"
        if key.startswith(_APP_ARMOR):
            yield from _app_armor(where, key.removeprefix(_APP_ARMOR), value, names)
        elif key == _SECCOMP or key.startswith(_SECCOMP_OF_CONTAINER):
            yield from _seccomp(where, value)
    yield from _contradicted(f"{path.removesuffix('metadata.annotations')}spec", annotations, spec)


def _written_tolerations(path: str, text: str) -> Iterator[Broken]:
    """Yield what is wrong with tolerations that are written as JSON; a name's case does not matter to Go."""
    try:
        written = json.loads(text)
    except ValueError:
        yield path, f"Invalid value: {shown(text)}: must be a JSON list of tolerations"
        return
    known = {name.lower(): name for name in _TOLERATION_FIELDS}
    tolerations: list[Json] = []
    for each in written or () if isinstance(written, list | None) else [written]:
        fields: Json = each if isinstance(each, dict) else {}
        named = {known.get(name.lower(), name): value for name, value in fields.items()}
        wrong = [name for name, type_ in _TOLERATION_FIELDS.items() if not isinstance(named.get(name), type_ | None)]
        if not isinstance(written, list) or not isinstance(each, dict | None) or wrong:
            yield path, f"Invalid value: {shown(text)}: must be a JSON list of tolerations"
            return
        tolerations.append({name: value for name, value in named.items() if value is not None})
    yield from broken_values("[]core.v1.Toleration", tolerations, path)
    yield from broken_tolerations(path, tolerations)


def _app_armor(path: str, container: str, profile: str, names: set[str]) -> Iterator[Broken]:
    if container not in names:
        yield path, f"Invalid value: {shown(container)}: container not found"
    elif profile not in _APP_ARMOR_PROFILES and not profile.startswith(_LOCAL):
        yield path, f"Invalid value: {shown(profile)}: invalid AppArmor profile name"


def _seccomp(path: str, profile: str) -> Iterator[Broken]:
    if profile.startswith(_LOCAL):
        if why := broken_path_below(profile.removeprefix(_LOCAL)):
            yield path, why
    elif profile not in (*_DEFAULTS, "unconfined"):
        yield path, f"Invalid value: {shown(profile)}: must be a valid seccomp profile"


def _contradicted(path: str, annotations: Mapping[str, str], spec: Json) -> Iterator[Broken]:
    """Yield the profiles that annotations and fields of the spec at ``path`` name differently."""
    context = spec.get("securityContext", {})
    yield from _differs(f"{path}.securityContext.seccompProfile", annotations.get(_SECCOMP), context)
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            own = container.get("securityContext", {})
            where = f"{path}.{kind}[{i}].securityContext"
            written = annotations.get(_SECCOMP_OF_CONTAINER + container["name"])
            yield from _differs(f"{where}.seccompProfile", written, own)
            if spec.get("os", {}).get("name") != "windows":
                # the API server gives a pod's container the annotation's profile before it compares; not a template's
                written = annotations.get(_APP_ARMOR + container["name"])
                armor = own if "appArmorProfile" in own or (path == "spec" and written) else context
                yield from _differs(f"{where}.appArmorProfile", written, armor)


def _differs(path: str, written: str | None, context: Json) -> Iterator[Broken]:
    field = path.rpartition(".")[2]
    profile = context.get(field)
    if written is None or profile is None:
        return
    name = "seccomp" if field == "seccompProfile" else "apparmor"
    kind, defaults = profile.get("type"), _DEFAULTS if name == "seccomp" else _DEFAULTS[:1]
    local = kind == "Localhost" and written.startswith(_LOCAL)
    if local and written.removeprefix(_LOCAL) != profile.get("localhostProfile"):
        yield f"{path}.localhostProfile", f"Forbidden: {name} profile in annotation and field must match"
    elif not (
        local
        or (kind == "Unconfined" and written == "unconfined")
        or (kind == "RuntimeDefault" and written in defaults)
    ):
        yield f"{path}.type", f"Forbidden: {name} type in annotation and field must match"
