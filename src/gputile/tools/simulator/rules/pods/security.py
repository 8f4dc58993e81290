"""Checks the security and the operating system of pods and containers as the API server does."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.pods.windows import broken_host_process, broken_windows_options
from gputile.tools.simulator.rules.values.fields import Broken
from gputile.tools.simulator.rules.values.numbers import broken_within

Json = Mapping[str, Any]
_USERS: Final = ("runAsUser", "runAsGroup", "fsGroup")
_HOST: Final = ("hostNetwork", "hostPID", "hostIPC")
_SYSCTL: Final = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?", re.ASCII)
_LONGEST_SYSCTL: Final = 253
_SYSCTLS_OF_HOST: Final = {
    "hostIPC": re.compile(r"kernel\.(shm|msg|sem\Z)|fs\.mqueue\."),
    "hostNetwork": re.compile(r"net\."),
}
_SYSTEMS: Final = ("linux", "windows")
_RELABELLING: Final = ("Recursive",)
# What a pod for Windows cannot say, in its own securityContext and in a container's.
_NOT_ON_WINDOWS: Final = (
    *("appArmorProfile", "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsUser", "seLinuxOptions"),
    *("seccompProfile", "supplementalGroups", "supplementalGroupsPolicy", "sysctls"),
    *("allowPrivilegeEscalation", "capabilities", "privileged", "procMount", "readOnlyRootFilesystem"),
)


def broken_pod_security(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with what the spec at ``path`` says of the pod's security and operating system."""
    context = spec.get("securityContext", {})
    where = f"{path}.securityContext"
    yield from _profiles(where, context)
    yield from _sysctls(f"{where}.sysctls", context.get("sysctls", ()), spec)
    for i, group in enumerate(context.get("supplementalGroups", ())):
        yield from ((f"{where}.supplementalGroups[{i}]", rule) for _, rule in broken_within("", {"": group}, "", 0))
    if context.get("seLinuxChangePolicy", "Recursive") not in _RELABELLING:
        valid = ", ".join(map(shown, _RELABELLING))
        said = f"Unsupported value: {shown(context['seLinuxChangePolicy'])}: supported values: {valid}"
        yield f"{where}.seLinuxChangePolicy", said
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        yield (
            f"{path}.shareProcessNamespace",
            "Invalid value: true: ShareProcessNamespace and HostPID cannot both be true",
        )
    for field in _HOST:
        if spec.get(field) and spec.get("hostUsers") is False:
            yield f"{path}.{field}", "Forbidden: when `hostUsers` is false"
    yield from _system(path, spec)
    yield from broken_windows_options(f"{where}.windowsOptions", context.get("windowsOptions", {}))
    yield from broken_host_process(path, spec)


def broken_container_security(path: str, container: Json, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with the security of the container at ``path`` of the pod with ``spec``."""
    context = container.get("securityContext", {})
    where = f"{path}.securityContext"
    yield from _profiles(where, context)
    if context.get("procMount") == "Unmasked" and spec.get("hostUsers") is not False:
        yield f"{where}.procMount", 'Invalid value: "Unmasked": `hostUsers` must be false to use `Unmasked`'
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            rule = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            yield where, f"Invalid value: {rule}"
        if "CAP_SYS_ADMIN" in context.get("capabilities", {}).get("add", ()):
            rule = "cannot set `allowPrivilegeEscalation` to false and add the capability CAP_SYS_ADMIN"
            yield where, f"Invalid value: {rule}"
    if container.get("volumeDevices") and spec.get("hostUsers") is False:
        yield f"{path}.volumeDevices", "Forbidden: when `hostUsers` is false"
    yield from _on_system(where, context, spec.get("os", {}).get("name"))
    yield from broken_windows_options(f"{where}.windowsOptions", context.get("windowsOptions", {}))


def _profiles(path: str, context: Json) -> Iterator[Broken]:
    for field in _USERS:
        yield from broken_within(path, context, field, 0)
    for field, name in (("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")):
        profile = context.get(field, {})
        where, file = f"{path}.{field}.localhostProfile", profile.get("localhostProfile")
        if profile.get("type") == "Localhost" and (file is None or (file == "" and field == "appArmorProfile")):
            yield where, f"Required value: must be set when {name} type is Localhost"
        elif file is None:
            continue
        elif profile.get("type") != "Localhost":
            yield where, f"Invalid value: {shown(file)}: can only be set when {name} type is Localhost"
        elif field == "appArmorProfile" and file != file.strip():
            yield where, f"Invalid value: {shown(file)}: must not be padded with whitespace"
        elif field == "seccompProfile" and (file.startswith("/") or ".." in file.split("/")):
            yield where, f"Invalid value: {shown(file)}: must be a relative path without '..'"


def _sysctls(path: str, sysctls: Any, spec: Json) -> Iterator[Broken]:
    names: set[str] = set()
    for i, sysctl in enumerate(sysctls):
        name = sysctl["name"]
        if len(name) > _LONGEST_SYSCTL or not _SYSCTL.fullmatch(name):
            rule = "must be lower case letters, digits, '-' and '_', in parts between '.' or '/'"
            yield f"{path}[{i}].name", f"Invalid value: {shown(name)}: {rule}"
        for field, shared in _SYSCTLS_OF_HOST.items():
            if spec.get(field) and shared.match(name.replace("/", ".")):
                yield f"{path}[{i}].name", f"Invalid value: {shown(name)}: may not be specified when '{field}' is true"
        if name in names:
            yield f"{path}[{i}].name", f"Duplicate value: {shown(name)}"
        names.add(name)


def _system(path: str, spec: Json) -> Iterator[Broken]:
    system = spec.get("os", {}).get("name")
    if system is not None and system not in _SYSTEMS:
        valid = ", ".join(map(shown, _SYSTEMS))
        yield f"{path}.os.name", f"Unsupported value: {shown(system)}: supported values: {valid}"
    context = spec.get("securityContext", {})
    yield from _on_system(f"{path}.securityContext", context, system)
    if system == "windows":
        given = [field for field in ("shareProcessNamespace", "hostUsers", "resources") if field in spec]
        for field in (*(field for field in _HOST[1:] if spec.get(field)), *given):
            yield f"{path}.{field}", "Forbidden: cannot be set for a windows pod"


def _on_system(path: str, context: Json, system: Any) -> Iterator[Broken]:
    if system == "linux" and "windowsOptions" in context:
        yield f"{path}.windowsOptions", "Forbidden: windows options cannot be set for a linux pod"
    if system == "windows":
        for field in _NOT_ON_WINDOWS:
            if field in context and (field, context[field]) != ("sysctls", []):
                yield f"{path}.{field}", "Forbidden: cannot be set for a windows pod"
