"""Checks the options of pods and containers for Windows as the API server does."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken
from gputile.tools.simulator.rules.values.names import broken_subdomain

Json = Mapping[str, Any]
_LARGEST_CREDENTIAL: Final = 64 * 1024  # bytes
_LONGEST_DOMAIN: Final = 255
_LONGEST_USER: Final = 104
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NET_BIOS: Final = re.compile(r'[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}')
_DNS: Final = re.compile(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.ASCII | re.IGNORECASE
)
_NOT_IN_USERS: Final = '"/\\:;|=,+*?<>@[]'


def broken_windows_options(path: str, options: Json) -> Iterator[Broken]:
    """Yield what is wrong with ``windowsOptions`` at ``path``."""
    name = options.get("gmsaCredentialSpecName")
    if name is not None and (why := broken_subdomain(name)):
        yield f"{path}.gmsaCredentialSpecName", why
    credential = options.get("gmsaCredentialSpec")
    if credential is not None and not 0 < len(credential.encode()) <= _LARGEST_CREDENTIAL:
        rule = f"must be 1 to {_LARGEST_CREDENTIAL} bytes"
        yield f"{path}.gmsaCredentialSpec", f"Invalid value: {shown(credential)}: {rule}"
    user = options.get("runAsUserName")
    if user is not None and (why := _broken_user(user)):
        yield f"{path}.runAsUserName", f"Invalid value: {shown(user)}: {why}"


def broken_host_process(path: str, spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with which containers of the spec at ``path`` are processes of the host."""
    of_pod = spec.get("securityContext", {}).get("windowsOptions", {}).get("hostProcess")
    hosted = []
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind, ())):
            own = container.get("securityContext", {}).get("windowsOptions", {}).get("hostProcess")
            if None not in (of_pod, own) and of_pod != own:
                where = f"{path}.{kind}[{i}].securityContext.windowsOptions.hostProcess"
                yield where, f"Invalid value: {str(own).lower()}: must be as the pod's own hostProcess"
            hosted.append(of_pod if own is None else own)
    if any(hosted) and not all(hosted):
        yield path, "Invalid value: if one container is a hostProcess, all containers must be"
    if any(hosted) and not spec.get("hostNetwork"):
        rule = "hostNetwork must be true if pod contains any hostProcess containers"
        yield f"{path}.hostNetwork", f"Invalid value: false: {rule}"


def _broken_user(text: str) -> str | None:
    """Return why ``text`` names no user of Windows, as USER or DOMAIN\\USER; None where it does."""
    domain, backslash, user = text.rpartition("\\")
    if not text or not user:
        return "must name a user"
    if _CONTROL.search(text):
        return "must not contain control characters"
    if "\\" in domain:
        return "must not contain more than one backslash"
    if backslash and (
        len(domain.encode()) > _LONGEST_DOMAIN or not (_NET_BIOS.fullmatch(domain) or _DNS.fullmatch(domain))
    ):
        return f"the domain before the backslash must be a NetBIOS or DNS name of at most {_LONGEST_DOMAIN} characters"
    if len(user.encode()) > _LONGEST_USER:
        return f"the user must be no more than {_LONGEST_USER} characters"
    if not user.strip(". "):
        return "the user must not be only periods and spaces"
    if set(user) & set(_NOT_IN_USERS):
        return f"the user must not contain any of {_NOT_IN_USERS}"
    return None
