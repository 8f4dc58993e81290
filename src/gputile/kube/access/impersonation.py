"""Says to the API server as whom to act, where a kubeconfig's user is to act as somebody else."""

from typing import Final
from urllib.parse import quote

from gputile.kube.access.client_config import ClientConfigUser

Headers = tuple[tuple[str, str], ...]
_PREFIX: Final = "Impersonate-"
_OF_NAMES: Final = "!#$&'*+^`|"  # what stands in a header's name beside what never needs a code, "%" aside


def impersonation(user: ClientConfigUser, name: str) -> Headers:
    """Return the headers that ``as``, ``as-uid``, ``as-groups`` and ``as-user-extra`` of a user mean, as client-go's.

    Raises:
        ValueError: a group, UID or extra is there without ``as``, or one of them cannot stand in a header.
    """
    extras = [(key, each) for key, values in (user.as_user_extra or {}).items() for each in values or ()]
    if not user.as_:
        if user.as_uid or user.as_groups or extras:
            raise ValueError(f"user {name!r}: as-uid, as-groups and as-user-extra need as, which it has not")
        return ()
    headers = [(f"{_PREFIX}Extra-{quote(key, _OF_NAMES)}", each) for key, each in extras]
    headers.append((f"{_PREFIX}User", user.as_))
    headers += [(f"{_PREFIX}Uid", user.as_uid)] if user.as_uid else []
    headers += [(f"{_PREFIX}Group", group) for group in user.as_groups or ()]
    for field, value in headers:
        if not value.isprintable():
            raise ValueError(f"user {name!r}: {value!r} cannot be sent as {field}")
    return tuple(headers)
