"""Checks names of namespaces and containers as Kubernetes does (apimachinery, util/validation)."""

import re
from typing import Final

from gputile.api.wording import shown

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)


def broken_label_name(name: str) -> str | None:
    """Return why ``name`` is no DNS label, as names of containers and namespaces are; None where it is one."""
    if len(name) > 63:
        return f"Invalid value: {shown(name)}: must be no more than 63 characters"
    if not _LABEL.fullmatch(name):
        rule = "lower case letters, digits and '-', beginning and ending with a letter or digit (RFC 1123 label)"
        return f"Invalid value: {shown(name)}: must be {rule}"
    return None
