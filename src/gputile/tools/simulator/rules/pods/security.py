"""Checks the security and the operating system of pods and containers as the API server does."""

import re
from collections.abc import Iterator
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.pods.windows import broken_host_process
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.repeats import broken_repeats

_HOST: Final = ("hostNetwork", "hostPID", "hostIPC")
_SYSCTLS_OF_HOST: Final = {
    "hostIPC": re.compile(r"kernel\.(shm|msg|sem\Z)|fs\.mqueue\."),
    "hostNetwork": re.compile(r"net\."),
}
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
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        yield (
            f"{path}.shareProcessNamespace",
            "Invalid value: true: ShareProcessNamespace and HostPID cannot both be true",
        )
    for field in _HOST:
        if spec.get(field) and spec.get("hostUsers") is False:
            yield f"{path}.{field}", "Forbidden: when `hostUsers` is false"
    yield from _system(path, spec)
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


def _profiles(path: str, context: Json) -> Iterator[Broken]:
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
    yield from broken_repeats(path, sysctls, "name")
    for i, name in enumerate(sysctl["name"] for sysctl in sysctls):
        for field, shared in _SYSCTLS_OF_HOST.items():
            if spec.get(field) and shared.match(name.replace("/", ".")):
                yield f"{path}[{i}].name", f"Invalid value: {shown(name)}: may not be specified when '{field}' is true"


def _system(path: str, spec: Json) -> Iterator[Broken]:
    system = spec.get("os", {}).get("name")
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
