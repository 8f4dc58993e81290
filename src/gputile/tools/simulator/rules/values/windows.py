"""Checks names and credentials of users of Windows, as the API server does."""

import re
from typing import Final

from gputile.api.wording import shown

_LARGEST_CREDENTIAL: Final = 64 * 1024  # bytes
_LONGEST_DOMAIN: Final = 255
_LONGEST_USER: Final = 104
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NET_BIOS: Final = re.compile(r'[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}')
_DNS: Final = re.compile(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.ASCII | re.IGNORECASE
)
_NOT_IN_USERS: Final = '"/\\:;|=,+*?<>@[]'


def broken_credential(text: str) -> str | None:
    """Return why ``text`` is no specification of a credential; None where it may be one."""
    if 0 < len(text.encode()) <= _LARGEST_CREDENTIAL:
        return None
    return f"Invalid value: {shown(text)}: must be 1 to {_LARGEST_CREDENTIAL} bytes"


def broken_user(text: str) -> str | None:
    """Return why ``text`` names no user of Windows, as USER or DOMAIN\\USER; None where it does."""
    why = _why_no_user(text)
    return f"Invalid value: {shown(text)}: {why}" if why else None


def _why_no_user(text: str) -> str | None:
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
